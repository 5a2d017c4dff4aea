// A program of a decoder's steps in one call. The kernels of the single steps compute each number with
// the same functions in the same order.
#include "decoder.h"

#include "products/grouped_sums.h"
#include "products/int8.h"
#include "products/whole_products.h"
#include "rows.h"
#include "threads/work_queue.h"

namespace LEVEL {
namespace {

long larger_of(long a, long b) { return a > b ? a : b; }

constexpr long FETCHED = 8192;  // bytes of its weights that a piece prefetches while it waits for its rows

// Users of scratch.
struct Normed;
struct Wide;
struct Mixed;
struct Aside;
struct Queries;
struct Ready;
struct Scales;
struct Sums;
struct InRank;
struct Added;
struct Given;
struct GivenWide;
struct GivenMixed;
struct Chosen;
struct Weights;
struct Places;
struct Firsts;
struct Odds;
struct Found;
struct DeltaRow;
struct Factors;
struct Predicted;

template <class T>
struct Decoder {
  const Rows& all;
  T* registers[NUM_REGISTERS];
  float* queries;    // [R, H, D] of layers without hooks
  void* ready;       // the rows of the next product, where it does not take them as they are: laid, or digits
  float* scales;     // [R], of digits
  T* in_rank;        // [R, all.max_rank]: down(x) of the next product's rows x that have an adapter, one after another
  long num_chosen;   // experts of a row
  int32_t* chosen;   // [R, num_chosen]: the experts of a row, in order
  T* weights;        // [R, num_chosen]: their weights
  long* places;      // [R, num_chosen]: their rows in GIVEN
  long* firsts;      // [experts + 1]: the first row in GIVEN of each
  T* predicted;      // [streams, R, d]
  long num_threads;

  const AttentionArguments& heads(const Step& step) const { return all.key_ranges[step.key_range]; }
  long queries_width(const Step& step) const { return heads(step).num_heads * heads(step).dim; }
  // The first of row r's keys and values [2K, D] in WIDE; its queries and, if gated, its gates are before them.
  T* keys_of(const Step& step, long r) const {
    const long before = (step.gated ? 2 : 1) * queries_width(step);
    return row(step.from, r, before + 2 * heads(step).num_key_heads * heads(step).dim) + before;
  }
  T* row(long which, long r, long width) const { return registers[which] + r * width; }

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

  void norm_row(const Norm& norm, const T* x, T* out) const {
    const T* weight = static_cast<const T*>(norm.weight);
    if (norm.kind == RMS) rms_norm_row(x, weight, norm.width, norm.eps, out);
    else if (norm.kind == RMS_ONCE)
      rms_norm_row(x, static_cast<const float*>(norm.weight), norm.width, norm.eps, out);
    else if (norm.kind == WEIGHTS)
      each_number(norm.width, [&]<class N>(long i) { put(out + i, take<N>(x + i) * take<N>(weight + i)); });
    else layer_norm_row(x, weight, static_cast<const T*>(norm.bias), norm.width, norm.eps, out);
  }
  // The same in place for each part of `width` numbers.
  void norm_parts(const Norm& norm, T* x, long width) const {
    if (norm.weight)
      for (long i = 0; i < width; i += norm.width) norm_row(norm, x + i, x + i);
  }

  // The rows with an adapter that row r is one of, if that changes this product, or null.
  const AdaptedRows* adapted_with(long number, long r) const {
    for (const AdaptedRows* each = all.adapted; each < all.adapted + all.num_adapted; ++each)
      if (each->first <= r && r < each->end) return each->changes[number].down.weight ? each : nullptr;
    return nullptr;
  }
  // Where down(x) of row r is.
  T* in_rank_of(const AdaptedRows& rows, const Change& change, long r) const {
    return in_rank + rows.first * all.max_rank + (r - rows.first) * change.down.num_outputs;
  }

  // Converts row r, x [inputs], to the operand of the product of `step`, if that is not the row itself, and to the
  // operand of the row's adapter. Without a step: nothing.
  void make_ready(const Step* step, const T* x, long r) const {
    if (!step) return;
    if (step->op == MULTIPLY) make_adapter_ready(*step, x, r);
    const Product& p = step->product;
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
  void make_adapter_ready(const Step& step, const T* x, long r) const {
    if (const AdaptedRows* rows = adapted_with(step.number, r)) {
      const Change& change = rows->changes[step.number];
      multiply_rows(change.down, x, 1, {0, blocks_of(change.down)}, in_rank_of(*rows, change, r), 0);
    }
  }

  float* queries_of(const Step& step) const {
    float* kept = all.memory[step.layer].queries;  // of self attention
    return kept && !step.is_cross ? kept : queries;
  }
  Rotation rotation_of(const Step& step, long r) const {
    const long turned = step.num_rotated, position = all.key_ranges[0].positions[r];
    return {step.cos + position * turned, step.sin + position * turned, turned};
  }
  void enter_queries(const Step& step, T* q, long r) const {
    const AttentionArguments& a = heads(step);
    const long width = queries_width(step);
    norm_parts(step.norm, q, width);
    rotate_heads(q, a.num_heads, rotation_of(step, r), a.dim, queries_of(step) + r * width);
  }

  // Norms and rotates the heads of row r, and writes keys and values to the cache, except for a single row: attention
  // writes those.
  void enter_row(const Step& step, long r) const {
    const AttentionArguments& a = heads(step);
    const Heads shape{a.num_heads, a.num_key_heads, a.dim, a.block_size};
    const LayerMemory& memory = all.memory[step.layer];
    const long width = queries_width(step), key_width = shape.num_key_heads * shape.dim;
    T *kv = keys_of(step, r), *q = kv - (step.gated ? 2 : 1) * width;
    enter_queries(step, q, r);
    norm_parts(step.k_norm, kv, key_width);
    norm_parts(step.v_norm, kv + key_width, key_width);
    const Rotation rotation = rotation_of(step, r);
    if (all.alone[r]) rotate_heads(kv, shape.num_key_heads, rotation, shape.dim, kv);
    else
      rotate_and_store_row(kv, rotation, all.slots[r], shape, static_cast<T*>(memory.keys),
                           static_cast<T*>(memory.values));
  }

  // The convolution of a span's inputs at row r, with numbers from i on: each product and each sum is rounded to
  // float32. old: the inputs before the span. input_of(row): the inputs of a row.
  template <class N, class F>
  static N convolved(const Step& step, const Span& span, const T* old, F input_of, long r, long i) {
    const long n = step.num_kept, C = step.channels;
    N sum = spread<N>(0.0f);
    for (long tap = 0; tap <= n; ++tap) {
      const long at = r - span.first - n + tap;  // among the span's rows
      N input = spread<N>(0.0f);
      if (at >= 0) input = take<N>(input_of(span.first + at) + i);
      else if (!span.is_first) input = take<N>(old + (n + at) * C + i);
      const N product = input * take<N>(step.taps + tap * C + i);
      sum = tap ? sum + product : product;
    }
    return step.bias ? sum + take<N>(step.bias + i) : sum;
  }
  // Keeps the last inputs of a span, of `count` channels from `first` on. kept may be old.
  template <class F>
  static void keep_inputs(const Step& step, const Span& span, const T* old, T* kept, F input_of, long first,
                          long count) {
    const long n = step.num_kept, C = step.channels;
    for (long j = 0; j < n; ++j) {  // in order
      const long at = span.end - span.first - n + j;
      T* to = kept + j * C + first;
      if (at >= 0) memcpy(to, input_of(span.first + at) + first, count * sizeof(T));
      else if (span.is_first) memset(to, 0, count * sizeof(T));
      else memmove(to, old + (n + at) * C + first, count * sizeof(T));
    }
  }

  // B x, the gate's product and the result before it are rounded to T.
  void convolve(const Step& step, const Span& span) const {
    const long n = step.num_kept, C = step.channels;
    T* states = static_cast<T*>(all.memory[step.layer].inputs);
    const T* old = states + span.read * n * C;
    T* kept = states + span.write * n * C;
    const auto input_of = [&](long r) { return row(step.from, r, 3 * C) + 2 * C; };
    for (long r = span.first; r < span.end; ++r) {
      const T *before = row(step.from, r, 3 * C), *gate = before + C;
      T *x = input_of(r), *to = row(step.to, r, C);
      each_number(C, [&]<class N>(long i) {
        put(x + i, take<N>(before + i) * take<N>(x + i));
        put(to + i, take<N>(gate + i) * rounded<T>(convolved<N>(step, span, old, input_of, r, i)));
      });
    }
    keep_inputs(step, span, old, kept, input_of, 0, C);
  }

  // Key head h of a span, with the value heads that share it: convolution, delta rule, norm and gate.
  void apply_delta(const Step& step, const Span& span, long h) const {
    const DeltaNet& net = *step.delta;
    const DeltaSizes& sizes = net.sizes;
    const long n = step.num_kept, C = step.channels, dim = sizes.key_dim, shared = sizes.num_shared();
    const long values = shared * sizes.value_dim, keys = sizes.num_key_heads * dim, V = sizes.num_value_heads;
    const long all_values = V * sizes.value_dim, first_value = h * values;
    const long firsts[] = {h * dim, keys + h * dim, 2 * keys + first_value}, widths[] = {dim, dim, values};
    T* states = static_cast<T*>(all.memory[step.layer].inputs);
    const T* old = states + span.read * n * C;
    T* kept = states + span.write * n * C;
    const auto input_of = [&](long r) { return row(step.from, r, C + all_values + 2 * V); };
    SpanMatrices own(all.memory[step.layer].memory, span, sizes, h);
    T *q = scratch<DeltaRow, T>(2 * dim + values), *k = q + dim, *v = k + dim;
    float *beta = scratch<Factors, float>(2 * shared), *decay = beta + shared;
    for (long r = span.first; r < span.end; ++r) {
      T* parts[] = {q, k, v};
      for (int part = 0; part < 3; ++part)
        each_number(widths[part], [&]<class N>(long i) {
          const N sum = convolved<N>(step, span, old, input_of, r, firsts[part] + i);
          put(parts[part] + i, activate(rounded<T>(sum), SILU));
        });
      const T *gate = input_of(r) + C + first_value, *strengths = input_of(r) + C + all_values + h * shared;
      each_number(shared, [&]<class N>(long s) {
        const long at = h * shared + s;
        put(beta + s, rounded<T>(sigmoid(take<N>(strengths + s))));
        put(decay + s, decay_of(take<N>(strengths + V + s), take<N>(net.rates + at), take<N>(net.biases + at)));
      });
      T* to = row(step.to, r, all_values) + first_value;
      update_matrices(q, k, v, beta, decay, sizes, own.old, own.matrices, to);
      own.old = own.matrices;
      norm_parts(net.norm, to, values);
      each_number(values, [&]<class N>(long i) {
        put(to + i, activate(take<N>(gate + i), SILU) * take<N>(to + i));
      });
    }
    for (int part = 0; part < 3; ++part) keep_inputs(step, span, old, kept, input_of, firsts[part], widths[part]);
  }

  void gate_heads_row(const Step& step, long r) const {
    const long width = queries_width(step);
    T* x = row(MIXED, r, width);
    activate_times_row(keys_of(step, r) - width, x, width, SIGMOID, x);
    make_ready(step.next, x, r);
  }

  void attend(const Step& step, const AttentionItem& item) const {
    const LayerMemory& memory = all.memory[step.layer];
    AttentionArguments a = heads(step);
    a.queries = queries_of(step);
    a.keys = memory.keys, a.values = memory.values, a.out = registers[step.to];
    a.scale = step.score_scale, a.softcap = step.softcap;
    a.bias = step.bias, a.bias_width = step.bias_width, a.sinks = step.sinks;
    a.pattern_output = step.is_cross ? nullptr : memory.patterns;
    const bool is_alone = all.alone[item.first_row] && step.has_keys;
    attend_item<T>(a, item, is_alone ? keys_of(step, item.first_row) : nullptr);
  }

  // The items of a piece of ATTEND.
  Share items_of(const Items& items, long piece) const {
    for (const int64_t* list = items.lists;; ++list) {
      const long count = list[1] - list[0], pieces = num_pieces_of(count, num_threads);
      if (piece >= pieces && list + 1 < items.lists + items.num_lists) {
        piece -= pieces;
        continue;
      }
      const Share share = piece_of(count, num_threads, piece);
      return {list[0] + share.begin, list[0] + share.end};
    }
  }

  // A piece of a TAKE: a part of the rows of one of them.
  void copy_taken(const Step& step, long piece) const {
    const Taken& t = step.taken[piece / num_threads];
    const long part = piece % num_threads;
    for (long i = part * t.num_rows / num_threads; i < (part + 1) * t.num_rows / num_threads; ++i)
      memcpy(static_cast<T*>(t.memory) + i * t.width, row(t.from, t.rows[i], t.row_width) + t.first,
             t.width * sizeof(T));
  }

  // How threads share a product: blocks of columns, and rows where these are too few or the rows leave the caches.
  long blocks_of(const Product& p) const { return (p.num_outputs + BLOCK - 1) / BLOCK; }
  long rows_of_part(const Product& p) const { return is_int8(p) ? int8::ROWS : 2 * ROW_STEP; }  // at least
  long row_parts_of(const Product& p) const {
    const long wanted = larger_of((all.num_rows + MOST_ROWS - 1) / MOST_ROWS,
                                  (num_threads + blocks_of(p) - 1) / blocks_of(p));
    const long most = (all.num_rows + rows_of_part(p) - 1) / rows_of_part(p);
    return wanted < most ? wanted : most;
  }
  Share rows_of(const Product& p, long piece) const {
    const long parts = row_parts_of(p), part = piece % parts, some = rows_of_part(p);
    const long num = (all.num_rows + some - 1) / some, end = (part + 1) * num / parts * some;
    return {part * num / parts * some, end < all.num_rows ? end : all.num_rows};
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

  // Blocks of activation(x W^T + bias), of `count` rows x in the form's layout: y [count, columns of these blocks],
  // `width` apart. ranks: as in `Change`, or null; zeros of a weight add nothing to a sum.
  template <class Form>
  void multiply_floats(const Product& p, const typename Form::Number* x, long count, Share blocks, T* y, long width,
                       long activation, const int64_t* ranks = nullptr) const {
    const long K = p.num_inputs, N = p.num_outputs, stride = laid_stride<Form>(K);
    const T* bias = static_cast<const T*>(p.bias);
    float* sums = scratch<Sums, float>(lanes_up(count) * BLOCK);
    const InUse<Form> in_use;
    const auto each_block = [&](auto sum) {
      for (long block = blocks.begin; block < blocks.end; ++block) {
        const long column = block * BLOCK, num = N - column < BLOCK ? N - column : BLOCK;
        sum(block, [&](long r, long some) {
          store_block(sums + r * BLOCK, some, num, bias ? bias + column : nullptr, activation,
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
      multiply_floats<Form>(p, rows_for<Form>(x, count, p.num_inputs), count, blocks, y, width, NONE, ranks);
    });
  }

  // Adds the changes of adapters to blocks of y [R, N], the product with this number.
  void add_changes(long number, Share rows, Share blocks, T* y, long N) const {
    const long column = blocks.begin * BLOCK, width = (blocks.end * BLOCK < N ? blocks.end * BLOCK : N) - column;
    for (const AdaptedRows* each = all.adapted; each < all.adapted + all.num_adapted; ++each) {
      const long first = each->first > rows.begin ? each->first : rows.begin;
      const long count = (each->end < rows.end ? each->end : rows.end) - first;
      const Change& change = each->changes[number];
      if (count <= 0 || !change.down.weight) continue;
      T* added = scratch<Added, T>(count * width);
      multiply_rows(change.up, in_rank_of(*each, change, first), count, blocks, added, width, change.ranks);
      for (long r = 0; r < count; ++r) add_to(y + (first + r) * N + column, added + r * width, width);
    }
  }

  // to += from: [width] each.
  static void add_to(T* to, const T* from, long width) {
    each_number(width, [&]<class N>(long i) { put(to + i, take<N>(to + i) + take<N>(from + i)); });
  }
  static void scale_by(T* to, float scale, long width) {
    if (scale != 1) each_number(width, [&]<class N>(long i) { put(to + i, take<N>(to + i) * scale); });
  }

  // Blocks of y = activation(x W^T + bias) of rows that were made ready, or of x as it is where the product takes that.
  void multiply_ready(const Product& p, const T* x, Share rows, Share blocks, long activation, T* y) const {
    const long N = p.num_outputs;
    if (all.num_rows > MOST_ROWS) lightwell_note_progress();  // a step of long prompts may take seconds
    if (is_int8(p)) {
      with_digits(p, [&](auto count) {
        const uint8_t* digits = static_cast<const uint8_t*>(ready);
        int8::multiply_blocks<count>(digits + rows.begin * count * int8::digit_stride(p.num_inputs),
                                     scales + rows.begin, rows.end - rows.begin, p.num_inputs,
                                     static_cast<const int8_t*>(p.weight), static_cast<const T*>(p.bias), activation, N,
                                     blocks.begin, blocks.end, y + rows.begin * N);
      });
    } else {
      with_form(p, [&]<class Form>(Form) {
        const auto* from = static_cast<const typename Form::Number*>(ready);
        if constexpr (TAKES_ROWS<Form, T>) from = x;
        from += rows.begin * laid_stride<Form>(p.num_inputs);
        multiply_floats<Form>(p, from, rows.end - rows.begin, blocks, y + rows.begin * N + blocks.begin * BLOCK, N,
                              activation);
      });
    }
  }

  // A piece of a MULTIPLY.
  void multiply(const Step& step, long piece) const {
    const Product& p = step.product;
    const Share rows = rows_of(p, piece), blocks = columns_of(p, piece);
    const long N = p.num_outputs;
    T* y = registers[step.to];
    multiply_ready(p, registers[step.from], rows, blocks, step.activation, y);
    add_changes(step.number, rows, blocks, y, N);
    if (!step.adds) return;
    const long column = blocks.begin * BLOCK, width = (blocks.end * BLOCK < N ? blocks.end * BLOCK : N) - column;
    for (long r = rows.begin; r < rows.end; ++r) {
      scale_by(y + r * N + column, step.scale, width);
      add_to(registers[STREAM] + r * N + column, y + r * N + column, width);
    }
  }

  // A piece of EXPERTS: some columns of all experts.
  void multiply_experts(const Step& step, long piece) const {
    const Share blocks = piece_of(blocks_of(step.product), num_threads, piece);
    for (long e = 0; e < step.num_experts; ++e)
      for (long r = firsts[e]; r < firsts[e + 1]; r += MOST_ROWS) {
        const Share rows{r, r + MOST_ROWS < firsts[e + 1] ? r + MOST_ROWS : firsts[e + 1]};
        multiply_ready(step.experts[e], registers[step.from], rows, blocks, step.activation, registers[step.to]);
      }
  }

  void gate_row(const Step& step, long r) const {
    const long width = step.next->product.num_inputs;
    T *gate = row(step.from, r, 2 * width), *up = gate + width, *to = row(step.to, r, width);
    if (step.deviations > -INFINITY) drop_small_row(gate, width, step.deviations);
    if (step.limit > 0) {
      const float limit = step.limit, alpha = step.alpha;
      each_number(width, [&]<class N>(long i) {
        const N g = smaller_of(take<N>(gate + i), spread<N>(limit)) * alpha, u = take<N>(up + i);
        const N clamped = smaller_of(greater_of(u, spread<N>(-limit)), spread<N>(limit));
        put(to + i, activate(g, SILU) * ((clamped + 1.0f) / alpha));
      });
    } else if (step.activation == SILU) {
      silu_times_row(gate, up, width, to);
    } else {
      activate_times_row(gate, up, width, step.activation, to);
    }
    make_ready(step.next, to, r);
  }
  void gate_tokens_row(const Step& step, long r) const {
    const long width = step.next->product.num_inputs;
    const T* tokens = static_cast<const T*>(all.of_tokens) + (r * all.num_token_layers + step.layer) * width;
    T* to = row(step.to, r, width);
    activate_times_row(row(step.from, r, width), tokens, width, step.activation, to);
    make_ready(step.next, to, r);
  }
  // NaN stays NaN.
  template <class N>
  static N smaller_of(N a, N b) { return where_greater(a, b, b, a); }
  template <class N>
  static N greater_of(N a, N b) { return where_greater(b, a, b, a); }

  // Chooses the experts with the largest probabilities, of equal ones the first.
  void route_row(const Step& step, long r) const {
    const long E = step.num_experts, C = step.num_chosen;
    const T* logits = row(WIDE, r, E);
    float* odds = scratch<Odds, float>(lanes_up(E));
    for (long e = 0; e < lanes_up(E); ++e) odds[e] = e < E ? widen(logits[e]) : -INFINITY;
    softmax(odds, lanes_up(E), nullptr);
    int32_t* experts = chosen + r * C;
    T* own = weights + r * C;
    float *found = scratch<Found, float>(C), sum = 0;
    for (long c = 0; c < C; ++c) {
      long best = -1;
      for (long e = 0; e < E; ++e)
        if (odds[e] >= 0 && (best < 0 || odds[e] > odds[best])) best = e;
      experts[c] = best < 0 ? 0 : best;  // NaN: any
      found[c] = odds[experts[c]];
      odds[experts[c]] = -1;
      sum = c ? sum + found[c] : found[c];
    }
    for (long c = 0; c < C; ++c) {  // by number
      const int32_t expert = experts[c];
      const float own_weight = step.normalized ? found[c] / sum : found[c];
      const float weight = step.expert_scales ? own_weight * step.expert_scales[expert] : own_weight;
      long at = c;
      for (; at > 0 && experts[at - 1] > expert; --at) experts[at] = experts[at - 1], own[at] = own[at - 1];
      experts[at] = expert;
      store_one(own + at, weight);
    }
  }

  void sort_pairs(const Step& step) const {
    const long num_pairs = all.num_rows * num_chosen;
    for (long e = 0; e <= step.num_experts; ++e) firsts[e] = 0;
    for (long i = 0; i < num_pairs; ++i) ++firsts[chosen[i] + 1];
    for (long e = 0; e < step.num_experts; ++e) firsts[e + 1] += firsts[e];
    for (long i = 0; i < num_pairs; ++i) places[i] = firsts[chosen[i]]++;
    for (long e = step.num_experts; e > 0; --e) firsts[e] = firsts[e - 1];
    firsts[0] = 0;
  }

  void combine_row(const Step& step, long r) const {
    const long d = all.width;
    T* to = row(NORMED, r, d);
    for (long c = 0; c < num_chosen; ++c) {
      T* from = row(GIVEN, places[r * num_chosen + c], d);
      const float weight = widen(weights[r * num_chosen + c]);
      each_number(d, [&]<class N>(long i) { put(from + i, take<N>(from + i) * weight); });
      if (c) add_to(to, from, d);
      else memcpy(to, from, d * sizeof(T));
    }
    if (step.adds) add_to(to, row(ASIDE, r, d), d);
  }

  void gate_aside_row(long r) const {
    alignas(64) float both[LANES];
    for (long i = 0; i < LANES; ++i) both[i] = i ? -INFINITY : widen(*row(MIXED, r, 1));
    both[1] = 0;
    softmax(both, LANES, nullptr);
    T factor;
    store_one(&factor, both[0]);
    T* to = row(ASIDE, r, all.width);
    each_number(all.width, [&]<class N>(long i) { put(to + i, take<N>(to + i) * widen(factor)); });
  }

  T* stream(long which, long r) const {
    return which ? static_cast<T*>(all.others) + ((which - 1) * all.num_rows + r) * all.width
                 : row(STREAM, r, all.width);
  }
  T* prediction(long which, long r) const { return predicted + (which * all.num_rows + r) * all.width; }

  // Each product and each sum is rounded.
  void predict_row(const Step& step, long r) const {
    const long d = all.width, count = step.num_streams;
    const T* weights = row(WIDE, r, count * count);
    for (long to = 0; to < count; ++to)
      each_number(d, [&]<class N>(long i) {
        N sum = spread<N>(0.0f);
        for (long from = 0; from < count; ++from) {
          const N product = rounded<T>(take<N>(stream(from, r) + i) * widen(weights[to * count + from]));
          sum = from ? rounded<T>(sum + product) : product;
        }
        put(prediction(to, r) + i, sum + take<N>(stream(to, r) + i));
      });
    memcpy(row(STREAM, r, d), prediction(0, r), d * sizeof(T));
  }
  void merge_row(long r) const {
    const long d = all.width;
    const T *added = row(NORMED, r, d), *aside = row(ASIDE, r, d);
    T* x = row(STREAM, r, d);
    each_number(d, [&]<class N>(long i) {
      const N sum = rounded<T>(rounded<T>(take<N>(x + i) + take<N>(added + i)) + take<N>(aside + i));
      put(x + i, sum / 1.4142135623730951f);
    });
  }
  void correct_row(const Step& step, long r) const {
    const T *weights = row(WIDE, r, step.num_streams), *x = row(STREAM, r, all.width);
    for (long to = step.num_streams - 1; to >= 0; --to) {  // the first stream is read until the end
      const float weight = rounded<T>(widen(weights[to]) + 1.0f);
      each_number(all.width, [&]<class N>(long i) {
        const N novel = rounded<T>(take<N>(x + i) - take<N>(prediction(0, r) + i));
        put(stream(to, r) + i, rounded<T>(novel * weight) + take<N>(prediction(to, r) + i));
      });
    }
  }

  static bool is_of_pairs(const Step& step) {
    return step.op == GIVE || ((step.op == GATE || step.op == READY) && step.from >= GIVEN);
  }
  long num_pieces(const Step& step) const {
    const Product& p = step.product;
    if (step.op == MULTIPLY) return row_parts_of(p) * num_pieces_of(blocks_of(p), num_threads);
    if (step.op == EXPERTS) return num_pieces_of(blocks_of(p), num_threads);
    if (step.op == ATTEND) {
      const Items& items = all.items[step.key_range];
      long pieces = 0;
      for (long n = 0; n < items.num_lists; ++n)
        pieces += num_pieces_of(items.lists[n + 1] - items.lists[n], num_threads);
      return pieces;
    }
    if (step.op == TAKE) return step.num_taken * num_threads;
    if (step.op == CONVOLVE) return num_pieces_of(all.num_spans, num_threads);
    if (step.op == APPLY_DELTA) return num_pieces_of(all.num_spans * step.delta->sizes.num_key_heads, num_threads);
    if (step.op == SORT) return 1;
    if (is_of_pairs(step)) return num_pieces_of(all.num_rows * num_chosen, num_threads);
    if (step.op == READY && takes_rows(step.next->product) && all.num_adapted == 0) return 0;
    return num_pieces_of(all.num_rows, num_threads);
  }

  // Asks for the first weights of a piece.
  void fetch(const Step& step, long piece) const {
    const Product& p = step.product;
    if (step.op == MULTIPLY && columns_of(p, piece).begin < blocks_of(p))
      prefetch(block_at(p, columns_of(p, piece).begin), FETCHED);
  }

  void run(const Step& step, long piece) const {
    const auto each_row = [&](auto work) {
      const long count = all.num_rows * (is_of_pairs(step) ? num_chosen : 1);
      const Share rows = piece_of(count, num_threads, piece);
      for (long r = rows.begin; r < rows.end; ++r) work(r);
    };
    const long d = all.width;
    switch (step.op) {
      case NORM: return each_row([&](long r) {
        T* to = row(step.to, r, d);
        norm_row(step.norm, row(step.from, r, d), to);
        make_ready(step.next, to, r);
      });
      case MULTIPLY: return multiply(step, piece);
      case ENTER: return each_row([&](long r) { enter_row(step, r); });
      case CONVOLVE: {
        const Share spans = piece_of(all.num_spans, num_threads, piece);
        for (long i = spans.begin; i < spans.end; ++i) convolve(step, all.spans[i]);
        return;
      }
      case APPLY_DELTA: {
        const long heads = step.delta->sizes.num_key_heads;
        const Share items = piece_of(all.num_spans * heads, num_threads, piece);
        for (long i = items.begin; i < items.end; ++i) apply_delta(step, all.spans[i / heads], i % heads);
        return;
      }
      case GATE_HEADS: return each_row([&](long r) { gate_heads_row(step, r); });
      case QUERY: return each_row([&](long r) { enter_queries(step, row(step.from, r, queries_width(step)), r); });
      case ATTEND: {
        const Share items = items_of(all.items[step.key_range], piece);
        for (long i = items.begin; i < items.end; ++i) attend(step, all.items[step.key_range].items[i]);
        return;
      }
      case READY: return each_row([&](long r) {
        make_ready(step.next, row(step.from, r, step.next->product.num_inputs), r);
      });
      case GATE_TOKENS: return each_row([&](long r) { gate_tokens_row(step, r); });
      case GATE: return each_row([&](long r) { gate_row(step, r); });
      case ADD: return each_row([&](long r) {
        scale_by(row(NORMED, r, d), step.scale, d);
        add_to(row(STREAM, r, d), row(NORMED, r, d), d);
      });
      case JOIN: return each_row([&](long r) {
        T *normed = row(NORMED, r, d), *aside = row(ASIDE, r, d);
        add_to(row(step.to, r, d), step.to == NORMED ? aside : normed, d);
        if (step.adds) add_to(row(STREAM, r, d), row(NORMED, r, d), d);
      });
      case SCALE: return each_row([&](long r) { scale_by(row(step.from, r, d), step.scale, d); });
      case TANH: return each_row([&](long r) {
        const T* x = row(step.from, r, step.channels);
        T* to = row(step.to, r, step.channels);
        each_number(step.channels, [&]<class N>(long i) { put(to + i, tanh(take<N>(x + i))); });
      });
      case PREDICT: return each_row([&](long r) { predict_row(step, r); });
      case MERGE: return each_row([&](long r) { merge_row(r); });
      case CORRECT: return each_row([&](long r) { correct_row(step, r); });
      case ADD_OTHERS: return each_row([&](long r) {
        for (long n = 1; n < step.num_streams; ++n) add_to(stream(n, r), row(NORMED, r, d), d);
      });
      case ROUTE: return each_row([&](long r) { route_row(step, r); });
      case SORT: return sort_pairs(step);
      case GIVE: return each_row([&](long pair) {
        T* to = row(GIVEN, places[pair], d);
        memcpy(to, row(NORMED, pair / num_chosen, d), d * sizeof(T));
        make_ready(step.next, to, places[pair]);
      });
      case EXPERTS: return multiply_experts(step, piece);
      case COMBINE: return each_row([&](long r) { combine_row(step, r); });
      case GATE_ASIDE: return each_row([&](long r) { gate_aside_row(r); });
      case TAKE: return copy_taken(step, piece);
    }
  }
};

template <class T>
void run_decoder(const Step* steps, long num_steps, const Rows& rows, T* stream) {
  const long R = rows.num_rows;
  if (R == 0) return;
  long inputs = rows.width, outputs = rows.width, expert_inputs = 0, expert_outputs = 0, experts = 0, chosen = 0;
  long heads = 0, streams = 0;
  for (const Step* step = steps; step < steps + num_steps; ++step) {
    const bool is_of_experts = step->op == EXPERTS;
    if (step->op == MULTIPLY || is_of_experts) {
      long& most_inputs = is_of_experts ? expert_inputs : inputs;
      long& most_outputs = is_of_experts ? expert_outputs : outputs;
      most_inputs = larger_of(most_inputs, step->product.num_inputs);
      most_outputs = larger_of(most_outputs, step->product.num_outputs);
    }
    const AttentionArguments& range = rows.key_ranges[step->key_range];
    heads = larger_of(heads, range.num_heads * range.dim);
    streams = larger_of(streams, step->num_streams);
    experts = larger_of(experts, step->num_experts);
    chosen = larger_of(chosen, step->num_chosen);
  }
  const long P = R * chosen;
  const auto ready_bytes = [](long count, long inputs) {
    const long row = larger_of(laid_stride<Tiled>(inputs) * long(sizeof(float)), laid_stride<Bytes>(inputs));
    return larger_of(int8::room_for_digits<T>(count, inputs), lanes_up(count) * row);
  };
  const Decoder<T> decoder{rows,
                           {stream, scratch<Normed, T>(R * rows.width), scratch<Wide, T>(R * outputs),
                            scratch<Mixed, T>(R * inputs), scratch<Aside, T>(R * rows.width), static_cast<T*>(rows.out),
                            scratch<Given, T>(P * rows.width), scratch<GivenWide, T>(P * expert_outputs),
                            scratch<GivenMixed, T>(P * expert_inputs)},
                           scratch<Queries, float>(R * heads),
                           // An expert's rows begin anywhere, and its product may read a whole tile of them.
                           scratch<Ready, char>(larger_of(ready_bytes(R, inputs),
                                                          ready_bytes(P ? P + LANES : 0, expert_inputs))),
                           scratch<Scales, float>(larger_of(R, P)), scratch<InRank, T>(R * rows.max_rank), chosen,
                           scratch<Chosen, int32_t>(P), scratch<Weights, T>(P), scratch<Places, long>(P),
                           scratch<Firsts, long>(experts + 1),
                           scratch<Predicted, T>(streams * R * rows.width), lightwell_num_threads()};
  run_in_order(num_steps, [&](long n) { return decoder.num_pieces(steps[n]); },
               [&](long n, long piece) { decoder.fetch(steps[n], piece); },
               [&](long n, long piece) { decoder.run(steps[n], piece); });
}

}  // namespace
}  // namespace LEVEL

// Runs the steps of a program on stream [R, d], in place; keys and values go into the caches.
EXPORT(void, run_decoder_f32)
(const LEVEL::Step* steps, long num_steps, const LEVEL::Rows* rows, float* stream) {
  LEVEL::run_decoder(steps, num_steps, *rows, stream);
}
EXPORT(void, run_decoder_bf16)
(const LEVEL::Step* steps, long num_steps, const LEVEL::Rows* rows, LEVEL::bfloat16* stream) {
  LEVEL::run_decoder(steps, num_steps, *rows, stream);
}
