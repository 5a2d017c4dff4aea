// All layers of a BERT-like encoder (Devlin et al. 2018, arXiv:1810.04805) in one call.
//
// Texts are independent. So they are divided into groups, and one thread computes all layers of a group: the numbers
// between two products stay in its own cache, and no thread waits for another. With fewer groups than threads, the
// threads share each step instead: products by columns, attention by texts and heads, norms by rows. The kernels of the
// single steps compute each number with the same functions in the same order.
//
// If only the first row of each text is needed, the last layer continues with only these rows, which are then adjacent,
// after all keys and values.
//
// Axes: T rows of all texts, d = H D model width, H heads of D numbers, ff width of the mlp. T also: the type of
// numbers, float or bfloat16.
#include "rows.h"
#include "attention/text_attention.h"
#include "threads/work_queue.h"
#include "products/int8.h"
#include "products/whole_products.h"

namespace LEVEL {

// Of one layer: weights as `pack` lays them or as in int8.h, biases and norms of T. Same fields as in encoder.py.
struct EncoderLayer {
  const void *qkv, *qkv_bias;              // [3 d, d]
  const void *out, *out_bias;              // [d, d]
  const void *norm, *norm_bias;            // [d]
  const void *up, *up_bias;                // [ff, d], with gelu after it
  const void *down, *down_bias;            // [d, ff]
  const void *last_norm, *last_norm_bias;  // [d]
};

struct EncoderShape {
  long num_layers, num_heads, dim, ff;
  float scale, eps;  // of scores; of norms
};

namespace {

constexpr long MOST_GROUP_ROWS = 256;  // of a group of several texts: its numbers stay in the cache
constexpr long ROWS_OF_PART = 2 * ROW_STEP;  // at least, if a product has too few blocks of columns for the threads

// Of a layer, one after the other.
enum Step { QKV, ATTEND, OUT, NORM, UP, DOWN, LAST_NORM, NUM_STEPS };

// Users of scratch.
struct GroupRows;
struct GroupHidden;

// IN_BYTES: weights are in int8, and the rows that they multiply are rounded to 8 bits (int8.h).
template <class Form, class T, bool IN_BYTES>
struct Encoder {
  const EncoderLayer* layers;
  const EncoderShape& shape;
  const long* first_rows;  // [num_texts + 1], of texts that go through the layers together
  long num_texts, num_shares;
  bool first_alone;  // only the first row of each text is needed
  T* stream;  // [T, d], of all texts
  T* rows;    // [rows of these texts, 3 d]: queries, keys and values; then the summand of the stream, and `few`
  T* hidden;  // [rows, d or ff]: the output of attention; then the numbers between up and down

  Encoder(const EncoderLayer* layers, const EncoderShape& shape, const long* first_rows, long num_texts,
          long num_shares, bool first_alone, T* all)
      : layers(layers), shape(shape), first_rows(first_rows), num_texts(num_texts), num_shares(num_shares),
        first_alone(first_alone), stream(all + first_rows[0] * width()) {
    rows = scratch<GroupRows, T>(num_rows() * 3 * width());
    hidden = scratch<GroupHidden, T>(num_rows() * (width() > shape.ff ? width() : shape.ff));
  }

  long width() const { return shape.num_heads * shape.dim; }
  long num_rows() const { return first_rows[num_texts] - first_rows[0]; }
  bool is_few(long layer) const { return first_alone && layer == shape.num_layers - 1; }
  long num_rows(long layer, long step) const { return step != QKV && is_few(layer) ? num_texts : num_rows(); }
  T* few() const { return rows + num_texts * width(); }  // [num_texts, d]: the stream between the last layer's norms
  long first_row_of(long text) const { return first_rows[text] - first_rows[0]; }

  struct Product {
    const void *weight, *bias;
    const T* x;
    T* to;
    long num_inputs, num_outputs;
  };
  Product product(long layer, long step) const {
    const EncoderLayer& l = layers[layer];
    const long d = width();
    switch (step) {
      case QKV: return {l.qkv, l.qkv_bias, stream, rows, d, 3 * d};
      case OUT: return {l.out, l.out_bias, hidden, rows, d, d};
      case UP: return {l.up, l.up_bias, is_few(layer) ? few() : stream, hidden, d, shape.ff};
      default: return {l.down, l.down_bias, hidden, rows, shape.ff, d};
    }
  }

  static bool multiplies(long step) { return step == QKV || step == OUT || step == UP || step == DOWN; }

  // A product is cut by rows, and then by blocks of columns.
  long blocks(long step) const { return (product(0, step).num_outputs + BLOCK - 1) / BLOCK; }
  long row_parts(long layer, long step) const {
    const long count = num_rows(layer, step);
    const long few = (count + MOST_GROUP_ROWS - 1) / MOST_GROUP_ROWS;
    const long most = (count + ROWS_OF_PART - 1) / ROWS_OF_PART;
    const long wanted = num_shares == 1 ? 1 : (2 * num_shares + blocks(step) - 1) / blocks(step);
    return wanted <= few ? few : wanted < most ? wanted : most;
  }
  // The first of `count` rows in a part, at a multiple of ROW_STEP but for the last.
  static long first_row(long part, long parts, long count) {
    const long groups = (count + ROW_STEP - 1) / ROW_STEP;
    return part == parts ? count : part * groups / parts * ROW_STEP;
  }

  // The number of items of a step. Any thread may compute any of them.
  long num_things(long layer, long step) const {
    if (multiplies(step)) return row_parts(layer, step) * blocks(step);
    return step == ATTEND ? num_texts * shape.num_heads : num_rows(layer, step);
  }

  void run(long layer, long step, Share things) const {
    if (multiplies(step)) return multiply_share(layer, step, things);
    for (long i = things.begin; i < things.end; ++i) {
      if (step == ATTEND) attend(layer, i / shape.num_heads, i % shape.num_heads);
      else if (step == NORM) norm(layer, i);
      else last_norm(layer, i);
    }
  }

  void multiply_share(long layer, long step, Share things) const {
    const Product p = product(layer, step);
    const long K = p.num_inputs, N = p.num_outputs, num_blocks = blocks(step), parts = row_parts(layer, step);
    const long num_rows_of_step = num_rows(layer, step);
    const long block_words = (K + Form::INPUTS - 1) / Form::INPUTS * BLOCK;
    const Word* weight = static_cast<const Word*>(p.weight);
    const T* bias = static_cast<const T*>(p.bias);
    const long activation = step == UP ? GELU : NONE;
    for (long i = things.begin; i < things.end;) {
      const long part = i / num_blocks, first = first_row(part, parts, num_rows_of_step);
      const long count = first_row(part + 1, parts, num_rows_of_step) - first;
      if constexpr (IN_BYTES) {
        const long begin = i - part * num_blocks, left = things.end - part * num_blocks;
        const long end = left < num_blocks ? left : num_blocks;
        multiply_bytes(p, first, count, activation, begin, end);
        i += end - begin;
        continue;
      }
      const auto* x = rows_for<Form>(p.x + first * K, count, K);
      float* sums = scratch<ProductSums, float>(lanes_up(count) * BLOCK);
      const InUse<Form> in_use;
      for (; i < things.end && i / num_blocks == part; ++i) {
        const long block = i % num_blocks, column = block * BLOCK, width = N - column < BLOCK ? N - column : BLOCK;
        sum_block<Form>(x, laid_stride<Form>(K), count, weight + block * block_words, K, sums, [&](long r, long num) {
          store_block(sums + r * BLOCK, num, width, bias + column, activation, p.to + (first + r) * N + column, N);
        });
      }
    }
  }

  // `count` rows from `first` on, rounded to bytes, times blocks begin <= b < end.
  void multiply_bytes(const Product& p, long first, long count, long activation, long begin, long end) const {
    struct Digits;
    struct Scales;
    const long K = p.num_inputs, N = p.num_outputs, stride = int8::digit_stride(K);
    uint8_t* digits = scratch<Digits, uint8_t>(lanes_up(count) * stride);
    float* scales = scratch<Scales, float>(count);
    for (long r = 0; r < count; ++r)
      scales[r] = int8::digits_of_row<1>(p.x + (first + r) * K, K, digits + r * stride);
    int8::multiply_blocks<1>(digits, scales, count, K, static_cast<const int8_t*>(p.weight),
                             static_cast<const T*>(p.bias), activation, N, begin, end, p.to + first * N);
  }

  void attend(long layer, long text, long head) const {
    const long first = first_row_of(text), count = first_row_of(text + 1) - first;
    const TextHeads heads{shape.num_heads, shape.dim, shape.scale};
    const T* qkv = rows + first * 3 * width();
    if (is_few(layer)) attend_text<Form>(qkv, count, 1, heads, head, hidden + text * width());
    else attend_text<Form>(qkv, count, count, heads, head, hidden + first * width());
  }

  void norm(long layer, long i) const {
    const EncoderLayer& l = layers[layer];
    if (is_few(layer)) add_and_norm(l.norm, l.norm_bias, stream + first_row_of(i) * width(), i, few() + i * width());
    else add_and_norm(l.norm, l.norm_bias, stream + i * width(), i, stream + i * width());
  }
  void last_norm(long layer, long i) const {
    const EncoderLayer& l = layers[layer];
    T* to = stream + (is_few(layer) ? first_row_of(i) : i) * width();
    add_and_norm(l.last_norm, l.last_norm_bias, is_few(layer) ? few() + i * width() : to, i, to);
  }

  // to = the norm of x plus row i of `rows`; the sum is rounded first.
  void add_and_norm(const void* weight, const void* bias, const T* x, long i, T* to) const {
    const T* added = rows + i * width();
    each_number(width(), [&]<class N>(long j) { put(to + j, take<N>(x + j) + take<N>(added + j)); });
    layer_norm_row(to, static_cast<const T*>(weight), static_cast<const T*>(bias), width(), shape.eps, to);
  }

  void run_alone() const {
    for (long i = 0; i < shape.num_layers * NUM_STEPS; ++i) {
      run(i / NUM_STEPS, i % NUM_STEPS, {0, num_things(i / NUM_STEPS, i % NUM_STEPS)});
      lightwell_note_progress();
    }
  }

  void run_shared() const {
    run_in_order(
        shape.num_layers * NUM_STEPS,
        [&](long i) { return num_pieces_of(num_things(i / NUM_STEPS, i % NUM_STEPS), num_shares); }, [](long, long) {},
        [&](long i, long piece) {
          const long layer = i / NUM_STEPS, step = i % NUM_STEPS;
          run(layer, step, piece_of(num_things(layer, step), num_shares, piece));
        });
  }
};

// Number g of `count` groups begins with the first text that begins at or after g shares of all rows.
long first_text(const long* first_rows, long num_texts, long g, long count) {
  if (g == count) return num_texts;
  const long row = first_rows[0] + g * (first_rows[num_texts] - first_rows[0]) / count;
  long low = 0, high = num_texts;
  while (low < high) {
    const long middle = (low + high) / 2;
    if (first_rows[middle] < row) low = middle + 1;
    else high = middle;
  }
  return low;
}

template <class Form, bool IN_BYTES, class T>
void encode(const EncoderLayer* layers, const EncoderShape& shape, T* stream, const long* first_rows, long num_texts,
            bool first_alone) {
  const long threads = lightwell_num_threads(), num_rows = first_rows[num_texts] - first_rows[0];
  const long together = MOST_GROUP_ROWS * threads, count = (num_rows + together - 1) / together * threads;
  long there = 0;  // groups with texts
  for (long g = 0; g < count; ++g)
    there += first_text(first_rows, num_texts, g, count) < first_text(first_rows, num_texts, g + 1, count);
  if (there < threads)
    return Encoder<Form, T, IN_BYTES>(layers, shape, first_rows, num_texts, threads, first_alone, stream).run_shared();
  parallel(count, [&](long g) {
    const long first = first_text(first_rows, num_texts, g, count);
    const long end = first_text(first_rows, num_texts, g + 1, count);
    if (first < end)
      Encoder<Form, T, IN_BYTES>(layers, shape, first_rows + first, end - first, 1, first_alone, stream).run_alone();
  });
}

}  // namespace
}  // namespace LEVEL

// Replaces the residual stream [T, d] by the one after all layers. first_rows [num_texts + 1]: of each text, and T;
// layers [shape->num_layers]; first_alone: only the first row of each text is needed, other rows get arbitrary numbers;
// in_bytes: weights are in int8, and the rows that they multiply are rounded to 8 bits
EXPORT(void, encode_f32)(const LEVEL::EncoderLayer* layers, const LEVEL::EncoderShape* shape, float* stream,
                         const long* first_rows, long num_texts, long first_alone, long in_bytes) {
  using namespace LEVEL;
  const auto run = in_bytes ? encode<Float, true, float> : encode<Float, false, float>;
  run(layers, *shape, stream, first_rows, num_texts, first_alone);
}

// arithmetic: as of product_bf16
EXPORT(void, encode_bf16)(const LEVEL::EncoderLayer* layers, const LEVEL::EncoderShape* shape, uint16_t* stream,
                          const long* first_rows, long num_texts, long first_alone, long in_bytes, long arithmetic) {
  using namespace LEVEL;
  const auto widened = in_bytes ? encode<Widened, true, bfloat16> : encode<Widened, false, bfloat16>;
  const auto dot = in_bytes ? encode<Dot, true, bfloat16> : encode<Dot, false, bfloat16>;
  (arithmetic == 1 ? dot : widened)(layers, *shape, stream, first_rows, num_texts, first_alone);
}

// mixed [T, H, D] = softmax(scale q K^T) V within each text of qkv [T, 3, H, D]: only attention.
EXPORT(void, attend_texts_f32)(const float* qkv, float* mixed, const long* first_rows, long num_texts, long num_heads,
                               long dim, float scale) {
  using namespace LEVEL;
  attend_texts<Float>(qkv, mixed, first_rows, num_texts, {num_heads, dim, scale});
}
EXPORT(void, attend_texts_bf16)(const uint16_t* qkv, uint16_t* mixed, const long* first_rows, long num_texts,
                                long num_heads, long dim, float scale, long arithmetic) {
  using namespace LEVEL;
  if (arithmetic == 1) return attend_texts<Dot>(qkv, mixed, first_rows, num_texts, {num_heads, dim, scale});
  attend_texts<Widened>(qkv, mixed, first_rows, num_texts, {num_heads, dim, scale});
}
