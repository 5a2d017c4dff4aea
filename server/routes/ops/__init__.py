"""The routes for operators and browsers: health, administration, capabilities, the page. They never ask the model for
anything.
"""
