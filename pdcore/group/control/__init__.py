"""Groups at work: the record that says what shall run, who decides the next step, what state that makes."""
