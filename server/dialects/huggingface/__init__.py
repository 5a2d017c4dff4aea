"""Routes of Text Embeddings Inference (TEI) and Text Generation Inference (TGI). They translate requests and write
answers, without computation.
"""
