"""Why a group would be wrong: every reason, before anything is saved. One module per kind of rule, all of them pure."""
