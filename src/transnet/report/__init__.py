"""Tables, figures and the page of a study."""
