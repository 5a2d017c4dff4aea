// A decoder's blocks for a few rows in one call. The kernels of the single steps compute each number with the same
// functions in the same order.
#include "decoder.h"

#include "products/grouped_sums.h"
#include "products/int8.h"
#include "products/whole_products.h"
#include "rows.h"
#include "threads/work_queue.h"

namespace LEVEL {
namespace {

// Of a block, one after the other.
enum Phase { NORM, QKV, ENTER, ATTEND, READY, OUT, NORM_MLP, GATE_UP, GATE, DOWN, NUM_PHASES };
constexpr Phase PRODUCTS[] = {QKV, OUT, GATE_UP, DOWN};
constexpr long NUM_PRODUCTS = sizeof PRODUCTS / sizeof *PRODUCTS;

// The product of a phase, or null.
ALWAYS_INLINE const Product* product_of(const DecoderLayer& layer, long phase) {
  switch (phase) {
    case QKV: return &layer.qkv;
    case OUT: return &layer.out;
    case GATE_UP: return &layer.gate_up;
    case DOWN: return &layer.down;
    default: return nullptr;
  }
}

constexpr long FETCHED = 8192;  // bytes of its weights that a piece prefetches while it waits for its rows

// Users of scratch.
struct Normed;
struct Wide;
struct Mixed;
struct Queries;
struct Ready;
struct Scales;
struct Sums;
struct InRank;
struct Added;

template <class T>
struct Decoder {
  const DecoderLayer* layers;
  long num_layers;
  const DecoderStep& step;
  T* stream;         // [R, d]
  T* normed;         // [R, d]; also a product's summand of the stream
  T* wide;           // [R, (H + 2K) D or 2 ff]
  T* mixed;          // [R, H D or ff]
  float* queries;    // [R, H, D] of layers without hooks
  void* ready;       // the rows of the next product, where it does not take them as they are: laid, or digits
  float* scales;     // [R], of digits
  T* in_rank;        // [R, step.max_rank]: down(x) of the next product's rows x that have an adapter, one after another
  long num_threads;

  const AttentionArguments& heads() const { return step.key_ranges[0]; }
  long qkv_width() const { return (heads().num_heads + 2 * heads().num_key_heads) * heads().dim; }

  // use(form) with the form of a product with a weight that is not in int8.
  template <class F>
  static auto with_form(const Product& p, F use) {
    if (p.form == GROUPED_BYTES) return use(Bytes{});
    if constexpr (sizeof(T) < sizeof(float))
      if (p.form == DOT || (p.form == GROUPED_DOT && HAS_DOT)) return use(Dot{});
    if (p.form == FLOAT32 || is_grouped(p)) return use(Float{});
    return use(Widened{});
  }
  static bool is_grouped(const Product& p) { return GROUPED <= p.form && p.form <= GROUPED_BYTES; }
  static bool is_int8(const Product& p) { return p.form == INT8 || p.form == INT8_BYTES; }
  // Calls use(Index<digits>()) with the digits of the rows that an int8 weight is multiplied by.
  template <class F>
  static void with_digits(const Product& p, F use) {
    if (p.form == INT8_BYTES) use(Index<1>());
    else use(Index<int8::NUM_DIGITS<T>>());
  }

  static bool takes_rows(const Product& p) {
    return !is_int8(p) && with_form(p, []<class Form>(Form) { return TAKES_ROWS<Form, T>; });
  }

  template <class X>
  void norm_row(const X* x, const void* weight, long width, X* out) const {
    if (step.rounds_once) rms_norm_row(x, static_cast<const float*>(weight), width, step.eps, out);
    else rms_norm_row(x, static_cast<const X*>(weight), width, step.eps, out);
  }

  // The rows with an adapter that row r is one of, if that changes the product `which` of layer n, or null.
  const AdaptedRows* adapted_with(long n, long which, long r) const {
    for (const AdaptedRows* each = step.adapted; each < step.adapted + step.num_adapted; ++each)
      if (each->first <= r && r < each->end) return change_of(*each, n, which).down.weight ? each : nullptr;
    return nullptr;
  }
  static const Change& change_of(const AdaptedRows& rows, long n, long which) {
    return rows.changes[n * NUM_PRODUCTS + which];
  }
  // Where down(x) of row r is.
  T* in_rank_of(const AdaptedRows& rows, const Change& change, long r) const {
    return in_rank + rows.first * step.max_rank + (r - rows.first) * change.down.num_outputs;
  }

  // Converts row r, x [inputs], to the operand of the product `which` of layer n, if that is not the row itself, and to
  // the operand of the row's adapter.
  void make_ready(long n, long which, const T* x, long r) const {
    if (const AdaptedRows* rows = adapted_with(n, which, r)) {
      const Change& change = change_of(*rows, n, which);
      multiply_rows(change.down, x, 1, {0, blocks_of(change.down)}, in_rank_of(*rows, change, r), 0);
    }
    const Product& p = *product_of(layers[n], PRODUCTS[which]);
    const long K = p.num_inputs;
    if (is_int8(p)) {
      with_digits(p, [&](auto count) {
        scales[r] = int8::digits_of_row<count>(x, K, static_cast<uint8_t*>(ready) + r * count * int8::digit_stride(K));
      });
    } else {
      with_form(p, [&]<class Form>(Form) {
        using Number = typename Form::Number;
        if constexpr (!TAKES_ROWS<Form, T>) lay_row<Form>(x, K, static_cast<Number*>(ready) + r * laid_stride<Form>(K));
      });
    }
  }

  // Norms and rotates the heads of row r, and writes keys and values to the cache, except for a single row: attention
  // writes those.
  void enter_row(const DecoderLayer& layer, const LayerMemory& memory, long r) const {
    const Heads shape{heads().num_heads, heads().num_key_heads, heads().dim, heads().block_size};
    const long width = shape.num_heads * shape.dim, key_width = shape.num_key_heads * shape.dim;
    const long position = heads().positions[r];
    T* qkv = wide + r * qkv_width();
    if (layer.q_norm)
      for (long i = 0; i < width; i += layer.q_norm_width) norm_row(qkv + i, layer.q_norm, layer.q_norm_width, qkv + i);
    if (layer.k_norm)
      for (long i = width; i < width + key_width; i += layer.k_norm_width)
        norm_row(qkv + i, layer.k_norm, layer.k_norm_width, qkv + i);
    const long turned = layer.num_rotated;
    const Rotation rotation{layer.cos + position * turned, layer.sin + position * turned, turned};
    float* q = (memory.queries ? memory.queries : queries) + r * width;
    if (step.alone[r]) rotate_row(qkv, rotation, shape, q);
    else
      rotate_and_store_row(qkv, rotation, step.slots[r], shape, q, static_cast<T*>(memory.keys),
                           static_cast<T*>(memory.values));
  }

  void attend(const DecoderLayer& layer, const LayerMemory& memory, const AttentionItem& item) const {
    AttentionArguments a = step.key_ranges[layer.key_range];
    a.queries = memory.queries ? memory.queries : queries;
    a.keys = memory.keys, a.values = memory.values, a.out = mixed;
    const T* keys = wide + item.first_row * qkv_width() + a.num_heads * a.dim;
    attend_item<T>(a, item, step.alone[item.first_row] ? keys : nullptr);
  }

  // How threads share a product: blocks of columns, and rows where these are too few.
  long blocks_of(const Product& p) const { return (p.num_outputs + BLOCK - 1) / BLOCK; }
  long rows_of_part(const Product& p) const { return is_int8(p) ? int8::ROWS : 2 * ROW_STEP; }  // at least
  long row_parts_of(const Product& p) const {
    const long wanted = (num_threads + blocks_of(p) - 1) / blocks_of(p);
    const long most = (step.num_rows + rows_of_part(p) - 1) / rows_of_part(p);
    return wanted < most ? wanted : most;
  }
  Share rows_of(const Product& p, long piece) const {
    const long parts = row_parts_of(p), part = piece % parts, some = rows_of_part(p);
    const long num = (step.num_rows + some - 1) / some, end = (part + 1) * num / parts * some;
    return {part * num / parts * some, end < step.num_rows ? end : step.num_rows};
  }
  Share columns_of(const Product& p, long piece) const {
    return piece_of(blocks_of(p), num_threads, piece / row_parts_of(p));
  }
  const char* block_at(const Product& p, long block) const {
    if (is_grouped(p)) return reinterpret_cast<const char*>(grouped::block_at(p.weight, block));
    const long num_bytes = is_int8(p)          ? int8::block_bytes(p.num_inputs)
                           : p.form == FLOAT32 ? p.num_inputs * BLOCK * long(sizeof(float))
                                               : (p.num_inputs + 1) / 2 * BLOCK * long(sizeof(Word));
    return static_cast<const char*>(p.weight) + block * num_bytes;
  }

  // Blocks of x W^T + bias, of `count` rows x in the form's layout: y [count, columns of these blocks], `width` apart.
  // ranks: as in `Change`, or null; zeros of a weight add nothing to a sum.
  template <class Form>
  void multiply_floats(const Product& p, const typename Form::Number* x, long count, Share blocks, T* y, long width,
                       const int64_t* ranks = nullptr) const {
    const long K = p.num_inputs, N = p.num_outputs, stride = laid_stride<Form>(K);
    const T* bias = static_cast<const T*>(p.bias);
    float* sums = scratch<Sums, float>(lanes_up(count) * BLOCK);
    const InUse<Form> in_use;
    const auto each_block = [&](auto sum) {
      for (long block = blocks.begin; block < blocks.end; ++block) {
        const long column = block * BLOCK, num = N - column < BLOCK ? N - column : BLOCK;
        sum(block, [&](long r, long some) {
          store_block(sums + r * BLOCK, some, num, bias ? bias + column : nullptr, NONE,
                      y + r * width + column - blocks.begin * BLOCK, width);
        });
      }
    };
    if constexpr (!__is_same(Form, Widened))
      if (is_grouped(p)) {
        const grouped::Rows<Form> rows(x, stride, count, K);
        return each_block([&](long block, auto finish) {
          grouped::sum_grouped(rows, grouped::block_at(p.weight, block), K, sums, finish);
        });
      }
    if constexpr (!__is_same(Form, Bytes)) each_block([&](long block, auto finish) {
      const Word* w = reinterpret_cast<const Word*>(block_at(p, block));
      long first = 0, end = K;
      if constexpr (!__is_same(Form, Tiled))
        if (ranks) first = ranks[2 * block] / CHAIN * CHAIN, end = ranks[2 * block + 1];
      sum_block<Form>(x + first, stride, count, w + first / Form::INPUTS * BLOCK, end - first, sums, finish);
    });
  }

  // The same of rows as they are.
  void multiply_rows(const Product& p, const T* x, long count, Share blocks, T* y, long width,
                     const int64_t* ranks = nullptr) const {
    with_form(p, [&]<class Form>(Form) {
      multiply_floats<Form>(p, rows_for<Form>(x, count, p.num_inputs), count, blocks, y, width, ranks);
    });
  }

  // Adds the changes of adapters to blocks of y [R, N], the product `which` of layer n.
  void add_changes(long n, long which, Share rows, Share blocks, T* y, long N) const {
    const long column = blocks.begin * BLOCK, width = (blocks.end * BLOCK < N ? blocks.end * BLOCK : N) - column;
    for (const AdaptedRows* each = step.adapted; each < step.adapted + step.num_adapted; ++each) {
      const long first = each->first > rows.begin ? each->first : rows.begin;
      const long count = (each->end < rows.end ? each->end : rows.end) - first;
      const Change& change = change_of(*each, n, which);
      if (count <= 0 || !change.down.weight) continue;
      T* added = scratch<Added, T>(count * width);
      multiply_rows(change.up, in_rank_of(*each, change, first), count, blocks, added, width, change.ranks);
      for (long r = 0; r < count; ++r) {
        T* to = y + (first + r) * N + column;
        const T* from = added + r * width;
        each_number(width, [&]<class V>(long i) { put(to + i, take<V>(to + i) + take<V>(from + i)); });
      }
    }
  }

  // A piece of y [R, outputs] = x [R, inputs] W^T + bias, the product `which` of layer n, as adapters change it; then of
  // y *= scale and the stream += y where that is wanted.
  void multiply(long n, long which, const T* x, long piece, T* y, bool adds) const {
    const Product& p = *product_of(layers[n], PRODUCTS[which]);
    const Share rows = rows_of(p, piece), blocks = columns_of(p, piece);
    const long N = p.num_outputs;
    if (is_int8(p)) {
      with_digits(p, [&](auto count) {
        const uint8_t* digits = static_cast<const uint8_t*>(ready);
        int8::multiply_blocks<count>(digits + rows.begin * count * int8::digit_stride(p.num_inputs),
                                     scales + rows.begin, rows.end - rows.begin, p.num_inputs,
                                     static_cast<const int8_t*>(p.weight), static_cast<const T*>(p.bias), NONE, N,
                                     blocks.begin, blocks.end, y + rows.begin * N);
      });
    } else {
      with_form(p, [&]<class Form>(Form) {
        const auto* from = static_cast<const typename Form::Number*>(ready);
        if constexpr (TAKES_ROWS<Form, T>) from = x;
        from += rows.begin * laid_stride<Form>(p.num_inputs);
        multiply_floats<Form>(p, from, rows.end - rows.begin, blocks, y + rows.begin * N + blocks.begin * BLOCK, N);
      });
    }
    add_changes(n, which, rows, blocks, y, N);
    if (!adds) return;
    const long column = blocks.begin * BLOCK, end = blocks.end * BLOCK < N ? blocks.end * BLOCK : N;
    for (long r = rows.begin; r < rows.end; ++r) {
      T* to = stream + r * N + column;
      T* from = y + r * N + column;
      if (step.residual_scale != 1)
        each_number(end - column, [&]<class N>(long i) { put(from + i, take<N>(from + i) * step.residual_scale); });
      each_number(end - column, [&]<class N>(long i) { put(to + i, take<N>(to + i) + take<N>(from + i)); });
    }
  }

  void gate_row(long n, long r) const {
    const long width = layers[n].down.num_inputs;
    const T* gate = wide + 2 * r * width;
    silu_times_row(gate, gate + width, width, mixed + r * width);
    make_ready(n, 3, mixed + r * width, r);
  }

  long num_pieces(long number) const {
    const long phase = number % NUM_PHASES, n = number / NUM_PHASES;
    if (n < num_layers) {
      if (const Product* p = product_of(layers[n], phase))
        return row_parts_of(*p) * num_pieces_of(blocks_of(*p), num_threads);
      if (phase == ATTEND) return num_pieces_of(step.num_items, num_threads);
      if (phase == READY && takes_rows(layers[n].out) && step.num_adapted == 0) return 0;
    }
    return num_pieces_of(step.num_rows, num_threads);
  }

  // Asks for the first weights of a piece.
  void fetch(long number, long piece) const {
    if (number / NUM_PHASES == num_layers) return;
    const Product* p = product_of(layers[number / NUM_PHASES], number % NUM_PHASES);
    if (p && columns_of(*p, piece).begin < blocks_of(*p)) prefetch(block_at(*p, columns_of(*p, piece).begin), FETCHED);
  }

  void run(long number, long piece) const {
    const long n = number / NUM_PHASES, phase = number % NUM_PHASES, width = step.width;
    const auto each_row = [&](auto work) {
      const Share rows = piece_of(step.num_rows, num_threads, piece);
      for (long r = rows.begin; r < rows.end; ++r) work(r);
    };
    if (n == num_layers)
      return each_row([&](long r) {
        norm_row(stream + r * width, step.final_norm, width, static_cast<T*>(step.out) + r * width);
      });
    const DecoderLayer& layer = layers[n];
    const LayerMemory& memory = step.memory[n];
    const auto norm = [&](const void* weight, long next) {
      each_row([&](long r) {
        norm_row(stream + r * width, weight, width, normed + r * width);
        make_ready(n, next, normed + r * width, r);
      });
    };
    switch (phase) {
      case NORM: return norm(layer.before_attention, 0);
      case QKV: return multiply(n, 0, normed, piece, wide, false);
      case ENTER: return each_row([&](long r) { enter_row(layer, memory, r); });
      case ATTEND: {
        const Share items = piece_of(step.num_items, num_threads, piece);
        for (long i = items.begin; i < items.end; ++i) attend(layer, memory, step.items[i]);
        return;
      }
      case READY: return each_row([&](long r) { make_ready(n, 1, mixed + r * layer.out.num_inputs, r); });
      case OUT: return multiply(n, 1, mixed, piece, normed, true);
      case NORM_MLP: return norm(layer.before_mlp, 2);
      case GATE_UP: return multiply(n, 2, normed, piece, wide, false);
      case GATE: return each_row([&](long r) { gate_row(n, r); });
      case DOWN: return multiply(n, 3, mixed, piece, normed, true);
    }
  }
};

long larger_of(long a, long b) { return a > b ? a : b; }

template <class T>
void run_decoder(const DecoderLayer* layers, long num_layers, const DecoderStep& step, T* stream) {
  const long R = step.num_rows;
  if (R == 0) return;
  long inputs = 0, outputs = 0;
  for (long n = 0; n < num_layers; ++n)
    for (const Phase phase : PRODUCTS) {
      const Product& p = *product_of(layers[n], phase);
      inputs = larger_of(inputs, p.num_inputs);
      outputs = larger_of(outputs, p.num_outputs);
    }
  const long row_bytes = larger_of(laid_stride<Tiled>(inputs) * long(sizeof(float)), laid_stride<Bytes>(inputs));
  const long laid_bytes = lanes_up(R) * row_bytes;
  const long ready_bytes = larger_of(int8::room_for_digits<T>(R, inputs), laid_bytes);
  const Decoder<T> decoder{layers, num_layers, step, stream,
                           scratch<Normed, T>(R * step.width), scratch<Wide, T>(R * outputs),
                           scratch<Mixed, T>(R * inputs),
                           scratch<Queries, float>(R * step.key_ranges[0].num_heads * step.key_ranges[0].dim),
                           scratch<Ready, char>(ready_bytes), scratch<Scales, float>(R),
                           scratch<InRank, T>(R * step.max_rank), lightwell_num_threads()};
  run_in_order(num_layers * NUM_PHASES + (step.final_norm != nullptr),
             [&](long number) { return decoder.num_pieces(number); },
             [&](long number, long piece) { decoder.fetch(number, piece); },
             [&](long number, long piece) { decoder.run(number, piece); });
}

}  // namespace
}  // namespace LEVEL

// Runs the blocks of layers [num_layers] on stream [R, d], in place; keys and values go into the caches.
EXPORT(void, run_decoder_f32)
(const LEVEL::DecoderLayer* layers, long num_layers, const LEVEL::DecoderStep* step, float* stream) {
  LEVEL::run_decoder(layers, num_layers, *step, stream);
}
EXPORT(void, run_decoder_bf16)
(const LEVEL::DecoderLayer* layers, long num_layers, const LEVEL::DecoderStep* step, LEVEL::bfloat16* stream) {
  LEVEL::run_decoder(layers, num_layers, *step, stream);
}
