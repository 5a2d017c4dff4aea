"""Pydantic schemas that inspection routes share. Other fields are defined in the file of their route."""
