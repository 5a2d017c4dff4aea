// Explanations of technical terms for beginners: one or two sentences each, shown by parts/term.js.

export const TERMS = {
  "activation patching":
    "An experiment with two texts: one vector of the first text is replaced by the vector from the second text. If the " +
    "prediction changes to that of the second text, this vector contains the difference between the texts.",
  attention:
    "The step that moves information between tokens. Queries and keys determine the weight of each token, and each token " +
    "receives the weighted sum of the values.",
  "attention sink":
    "A token, usually the first, that receives the weight of heads when no other token is relevant. Some models have a " +
    "learned number for each head instead.",
  circuit:
    "The product of two matrices of a head. W_Q W_Kᵀ (QK) determines which token attends to which, and W_V W_O (OV) " +
    "determines the effect of attending to a token.",
  cosine: "The similarity of two directions: 1 if they are the same, 0 at a right angle, −1 if they are opposite.",
  "cross-attention":
    "Attention from one sequence to another: queries come from the decoder's tokens, keys and values from the encoder's.",
  "effective rank":
    "The number of directions that a matrix uses: e to the power of the entropy of its singular values, divided by their sum.",
  embedding: "The first vector of a token in the model. It is the same wherever the token occurs; the layers add the context.",
  entropy:
    "The uncertainty of a distribution: −Σ p ln p. It is 0 if one token has the probability 1, and ln n if n tokens are " +
    "equally probable.",
  head:
    "One of the parallel parts of an attention layer. Each head has its own queries, so it searches for different " +
    "information. It has its own keys and values, or shares them with other heads (grouped-query attention).",
  induction:
    "The work of a head that finds an earlier copy of the current token and attends to the token after it. After A B … A " +
    "it attends to B, and B becomes likelier.",
  key: "A vector of each token that describes its content. Its product with a query determines the attention.",
  "KV cache": "The stored keys and values of all previous tokens. With it, they are not computed again for each new token.",
  "Kullback-Leibler":
    "The divergence Σ p ln(p / q) of a distribution p from a distribution q, in nats. It measures the mean additional " +
    "surprise if tokens come from p but q is expected. It is 0 if both are equal.",
  layer:
    "One step of the network, also called a block: usually attention, then an MLP. Both add their output to the residual " +
    "stream, which is the input of the next layer.",
  LayerNorm:
    "Subtracts the mean of a vector, divides by its standard deviation, then scales and shifts each number. Its result " +
    "depends on the direction of the vector, not on its length.",
  logit:
    "The score of a token of the vocabulary as the next token. The softmax turns all logits into probabilities. If a logit " +
    "is 1 higher than another, its token is e ≈ 2.72 times as probable.",
  "logit lens":
    "Applies the final norm and the unembedding to the vector after an earlier layer (nostalgebraist, 2020). It shows the " +
    "prediction of the model up to this layer.",
  mask: "The keys that a query must not attend to, usually all later ones. Their score becomes −∞, so their weight is 0.",
  MLP:
    "The feed-forward part of a layer: a matrix to many neurons, an activation function, and a matrix back. It computes " +
    "each token separately.",
  nats:
    "The unit of entropy and surprise with natural logarithms. A probability p has a surprise of −ln p nats: 1 nat is a " +
    "probability of 37 %, 3 nats 5 %. One nat is 1.44 bits.",
  parameter: "A number that was learned in training. All parameters together are the weights of the model.",
  perplexity:
    "e to the power of the entropy, or of the mean surprise, in nats: the number of equally probable tokens with the same " +
    "uncertainty.",
  pooling: "The method that makes one vector of the vectors of all tokens: their mean, the last one, or the first one (cls).",
  "principal component":
    "The direction in which points vary most. The second principal component is the direction with the largest remaining " +
    "variation, at a right angle to the first.",
  query: "A vector of the token that attends. It is compared with all keys; similar keys get most of the attention.",
  "q·k":
    "The dot product of a query and a key: their numbers are multiplied pair by pair and summed. It is large if both have " +
    "similar directions.",
  "residual stream":
    "The vector of each token on its way through the network. It begins as the embedding. Each head and each MLP adds its " +
    "output.",
  RMSNorm: "Divides a vector by its root mean square, then scales each number. The length of the vector has no effect.",
  RoPE:
    "Rotary position embedding: pairs of numbers of queries and keys are rotated by an angle that grows with the position. " +
    "Therefore q·k depends on the distance between them.",
  "singular value":
    "The factor by which a matrix stretches one of its own directions. The largest ones describe its main effect.",
  "soft cap":
    "A limit c of the scores: they become c · tanh(score / c). Small scores hardly change, and large scores stay below c.",
  softmax:
    "Turns scores into positive numbers that sum to 1: exp(score), divided by the sum of all exp(score). Large scores get " +
    "most of the sum.",
  temperature:
    "The divisor of the logits before the softmax. Below 1, likely tokens become likelier; above 1, all probabilities " +
    "become more equal. With 0, the likeliest token is always chosen.",
  token:
    "A piece of text that the model reads as one unit: a word, a part of a word or a sign. Its number in the vocabulary is " +
    "its id.",
  unembedding: "The matrix W_U that turns the last vector into a logit for each token of the vocabulary.",
  "value-weighted":
    "Each weight, multiplied by the length of the key's value after W_O (Kobayashi et al., 2020). A large weight on a " +
    "short vector has little effect.",
  value: "A vector of each token that is passed to the tokens that attend to it.",
  vector:
    "A list of numbers. Inside a model, each token is a vector at every step: a point or a direction in a space with one " +
    "dimension for each number.",
  vocabulary: "All tokens that the model knows.",
  W_O: "The matrix of a head that turns its weighted values into its addition to the residual stream.",
  "Welch bound":
    "The smallest possible value of the largest |cosine| between n vectors in d dimensions: √((n − d) / (d (n − 1))), or 0 " +
    "if n is at most d. More vectors than dimensions cannot all be orthogonal.",
  weight: "The part of its attention that a query gives to a key, between 0 and 1. The weights of a query sum to 1.",
};
