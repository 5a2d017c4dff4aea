// Explanations of technical terms for beginners: one or two sentences each, shown by parts/term.js.

export const TERMS = {
  "activation patching":
    "An experiment: the model reads one text, and one of its vectors is replaced by that of another text. If the prediction " +
    "follows, the vector carries the difference.",
  attention:
    "The step in which each token takes something from other tokens: how much from each is decided by queries and keys, " +
    "the values are passed on.",
  "attention sink":
    "A token, mostly the first, to which heads give the weight that they have no other use for. Some models have a learned " +
    "number for each head in its place.",
  circuit:
    "The joint effect of a head's matrices. W_Q W_Kᵀ (QK) decides which token attends to which, W_V W_O (OV) " +
    "the effect of attending to a token.",
  cosine: "How alike the directions of two vectors are: 1 is the same direction, 0 a right angle, −1 the opposite.",
  "cross-attention":
    "Attention from one sequence to another: queries come from the decoder's tokens, keys and values from the encoder's.",
  "effective rank":
    "How many directions a matrix really uses: e to the entropy of its singular values, taken as shares of their sum.",
  embedding: "The vector that a token enters the model with. It is the same wherever the token occurs: the layers add the context.",
  entropy:
    "How undecided a distribution is: −Σ p ln p. It is 0 where one token has all the probability, and ln n where n tokens " +
    "have the same.",
  head:
    "One of the parts of an attention layer that work side by side. Each has its own queries, and so looks for something of " +
    "its own. Its keys and values are its own too, or shared by a group of heads (grouped-query attention).",
  induction:
    "A head that finds an earlier copy of the current token and attends to its successor: after A B … A it looks at B, " +
    "so that B becomes likelier.",
  key: "A vector of each token that describes its content. Its product with a query decides the attention.",
  "KV cache": "The keys and values of all tokens so far, which the server keeps so that a new token need not compute them again.",
  "Kullback-Leibler":
    "The divergence Σ p ln(p / q) of a distribution p from another, q, in nats: how many nats more of surprise, in the mean, " +
    "who expects q has with tokens drawn from p. It is 0 where both are the same.",
  layer:
    "One step of the network, also called a block: mostly attention, then an MLP. Each adds its output to the residual " +
    "stream, and the next layer reads that.",
  LayerNorm:
    "Takes the mean from a vector, divides by the standard deviation, then scales and shifts each number. What follows " +
    "reads the direction, not the length.",
  logit:
    "The score that the model gives each token of its vocabulary; softmax makes probabilities of them. A logit that is 1 " +
    "higher gives e ≈ 2.72 times the probability, compared with a token of unchanged logit.",
  "logit lens":
    "Reading a layer's vector as if it were the last one's: final norm, then unembedding (nostalgebraist, 2020). It shows " +
    "the prediction of the model so far.",
  mask: "Which keys a query must not see, mostly those after it. Their score becomes −∞, and so their weight 0.",
  MLP:
    "The feed-forward part of a layer: a matrix to many neurons, an activation, and a matrix back. It works on each token " +
    "by itself.",
  nats:
    "The unit of entropy and surprise with natural logarithms. A probability p has a surprise of −ln p nats: 1 nat is a " +
    "probability of 37 %, 3 nats 5 %. One nat is 1.44 bits.",
  parameter: "A number that was learned in training. Together they are the model's weights.",
  perplexity: "e to the entropy or to the mean surprise in nats: the number of tokens in a fair choice with the same uncertainty.",
  pooling: "How the vectors of a text's tokens become one: their mean, the last token's, or the first token's (cls).",
  "principal component":
    "The direction in which points spread most; the second is the one at right angles to it in which the rest spreads most.",
  query: "A vector made of the token that looks. It is compared with every key: where they fit, attention goes.",
  "q·k":
    "The dot product of a query and a key: their numbers multiplied pair by pair, and summed. It is large where both point " +
    "the same way.",
  "residual stream":
    "The vector of each token on its way through the network. It begins as the embedding, and each head and MLP adds its " +
    "output to it.",
  RMSNorm: "Divides a vector by its root mean square, then scales each number. What follows reads the direction, not the length.",
  RoPE:
    "Rotary position embedding: pairs of a query's and a key's numbers are turned by an angle that grows with the position, " +
    "so that q·k depends on the distance.",
  "singular value":
    "How strongly a matrix stretches one of its own directions. The largest ones describe the main effect of the matrix.",
  "soft cap":
    "A bound c that scores approach and never pass: c · tanh(score / c). Small scores stay nearly as they are, large ones are " +
    "squeezed.",
  softmax:
    "Turns scores into shares that sum to 1: each share is exp(score), divided by the sum of all exp(score). Large scores " +
    "take most.",
  temperature:
    "The divisor of the logits before the softmax. Below 1 the likely tokens become likelier, above 1 all come closer to " +
    "each other; 0 always takes the likeliest.",
  token:
    "A piece of text that the model reads as one: a word, a part of a word or a sign. Each has a number in the vocabulary, " +
    "its id.",
  unembedding: "The matrix W_U that turns the last vector into one logit for every token of the vocabulary.",
  "value-weighted":
    "Each weight times the length of the key's value after W_O (Kobayashi et al., 2020): " +
    "a large weight on a short vector moves little.",
  value: "A vector of each token that is passed to the tokens that attend to it.",
  vector: "A list of numbers. Inside a model, each token is one at every step: a point, or a direction, in a space of as many dimensions.",
  vocabulary: "All tokens that the model knows.",
  W_O: "The matrix of a head from the weighted values to its addition to the residual stream.",
  "Welch bound":
    "The least that the largest |cosine| of n vectors in d dimensions can be: √((n − d) / (d (n − 1))), or 0 where n is at most " +
    "d. More vectors than dimensions cannot all be orthogonal.",
  weight: "The share of its attention that a query gives a key: between 0 and 1, and 1 in all.",
};
