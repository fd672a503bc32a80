"""Show a Report: in a terminal, as HTML, in a notebook, as files of plots."""
