"""One model, one cache, one continuously batched loop: requests in, tokens and captures out. Independent of HTTP."""
