"""The pictures, as plotly figures."""
