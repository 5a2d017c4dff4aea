"""Routes for operators and browsers: health, administration, capabilities, the page. They send no requests to the
model.
"""
