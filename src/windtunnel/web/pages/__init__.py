"""One file for each kind of page. Each function returns a title and the HTML of the page's content."""
