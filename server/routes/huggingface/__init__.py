"""The routes of Text Embeddings Inference (TEI) and Text Generation Inference (TGI). They translate a request, write an
answer, and never compute.
"""
