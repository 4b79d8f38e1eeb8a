"""From an effective spec, a mode and a member's place to what is started: command line, environment, files, ports."""
