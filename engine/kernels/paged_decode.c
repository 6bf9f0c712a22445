/* Paged decode attention on x86-64 with AVX2: one query token a sequence, over pages where they lie.

   Scores, softmax and weighted values of TILE tokens are computed before the next are looked at, by all queries that
   share a KV head: so nothing is as long as the sequence, and keys and values are read while they are in the caches.
   paged_decode_compiled.py says what arguments are, and answers for what pointers point to. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define TILE 64
#define MOST_GROUP 64

struct call {
    const float *queries;   /* [batch][kv_heads][group][dims], scaled */
    const float *keys;      /* [pages][page_size][kv_heads][dims] */
    const float *values;    /* as keys */
    const int64_t *tables;  /* [batch][columns] */
    const int64_t *lengths; /* [batch] */
    float *outputs;         /* as queries */
    float *lses;            /* [batch][kv_heads][group] */
    ptrdiff_t batch, kv_heads, group, dims, page_size, columns;
};

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define UNROLLED _Pragma("GCC unroll 8")
#define TARGET __attribute__((target("avx2,fma")))
#define INLINE TARGET static inline __attribute__((always_inline))

/* e to the power of numbers up to 0, within 3e-7 of it; what is below -87 counts as that. */
INLINE __m256 exponential(__m256 x)
{
    x = _mm256_max_ps(x, _mm256_set1_ps(-87.0f));
    const __m256 twos = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    /* ln 2 in two parts, of which the first has so few bits that its multiples are exact */
    __m256 rest = _mm256_fnmadd_ps(twos, _mm256_set1_ps(0.693359375f), x);
    rest = _mm256_fnmadd_ps(twos, _mm256_set1_ps(-2.12194440e-4f), rest);
    __m256 power = _mm256_set1_ps(1.0f / 5040);
    power = _mm256_fmadd_ps(power, rest, _mm256_set1_ps(1.0f / 720));
    power = _mm256_fmadd_ps(power, rest, _mm256_set1_ps(1.0f / 120));
    power = _mm256_fmadd_ps(power, rest, _mm256_set1_ps(1.0f / 24));
    power = _mm256_fmadd_ps(power, rest, _mm256_set1_ps(1.0f / 6));
    power = _mm256_fmadd_ps(power, rest, _mm256_set1_ps(0.5f));
    power = _mm256_fmadd_ps(power, rest, _mm256_set1_ps(1.0f));
    power = _mm256_fmadd_ps(power, rest, _mm256_set1_ps(1.0f));
    const __m256i exponents = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(twos), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(power, _mm256_castsi256_ps(exponents));
}

/* Products of a query with four keys. */
INLINE __m128 scores_of_four(const float *query, const float *const *keys, ptrdiff_t dims)
{
    __m256 sums[4];
    UNROLLED for (int i = 0; i < 4; i++) sums[i] = _mm256_setzero_ps();
    for (ptrdiff_t dim = 0; dim < dims; dim += 8) {
        const __m256 part = _mm256_loadu_ps(query + dim);
        UNROLLED for (int i = 0; i < 4; i++)
            sums[i] = _mm256_fmadd_ps(part, _mm256_loadu_ps(keys[i] + dim), sums[i]);
    }
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

/* `output` times `faded`, and `count` values by their weights, in `vectors` times 8 dimensions from `dim` on. */
INLINE void add_values(
    const int vectors, float *output, float faded, const float *weights, const float *const *values, int count,
    ptrdiff_t dim)
{
    __m256 sums[8];
    UNROLLED for (int i = 0; i < vectors; i++)
        sums[i] = _mm256_mul_ps(_mm256_loadu_ps(output + dim + 8 * i), _mm256_set1_ps(faded));
    for (int token = 0; token < count; token++) {
        const __m256 weight = _mm256_set1_ps(weights[token]);
        UNROLLED for (int i = 0; i < vectors; i++)
            sums[i] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(values[token] + dim + 8 * i), sums[i]);
    }
    UNROLLED for (int i = 0; i < vectors; i++) _mm256_storeu_ps(output + dim + 8 * i, sums[i]);
}

/* What one query has seen so far: `sum` of exp(score - highest). */
struct seen {
    float highest, sum;
};

TARGET static void see_tile(
    struct seen *seen, const float *query, const float **keys, const float **values, float *output, int count,
    ptrdiff_t dims)
{
    float weights[TILE];
    const int filled = (count + 7) / 8 * 8;
    for (int token = count; token < filled; token++) keys[token] = keys[0]; /* read, and left out below */
    for (int token = 0; token < filled; token += 4)
        _mm_storeu_ps(weights + token, scores_of_four(query, keys + token, dims));
    float highest = seen->highest;
    for (int token = 0; token < count; token++) highest = weights[token] > highest ? weights[token] : highest;
    for (int token = 0; token < filled; token += 8) {
        const __m256 below = _mm256_sub_ps(_mm256_loadu_ps(weights + token), _mm256_set1_ps(highest));
        _mm256_storeu_ps(weights + token, exponential(below));
    }
    const float faded = seen->sum > 0 ? expf(seen->highest - highest) : 0;
    float sum = seen->sum * faded;
    for (int token = 0; token < count; token++) sum += weights[token];
    ptrdiff_t dim = 0;
    for (; dim + 64 <= dims; dim += 64) add_values(8, output, faded, weights, values, count, dim);
    for (; dim < dims; dim += 8) add_values(1, output, faded, weights, values, count, dim);
    *seen = (struct seen){highest, sum};
}

/* All queries of one sequence that share KV head `head`. */
TARGET static void attend(const struct call *now, ptrdiff_t sequence, ptrdiff_t head)
{
    const ptrdiff_t dims = now->dims, group = now->group, row_size = now->kv_heads * dims;
    const ptrdiff_t first = (sequence * now->kv_heads + head) * group, length = now->lengths[sequence];
    const float *queries = now->queries + first * dims, *keys[TILE], *values[TILE];
    float *outputs = now->outputs + first * dims;
    const int64_t *table = now->tables + sequence * now->columns;
    struct seen seen[MOST_GROUP];
    ptrdiff_t row = 0;
    for (ptrdiff_t member = 0; member < group; member++) seen[member] = (struct seen){-INFINITY, 0};
    for (ptrdiff_t i = 0; i < group * dims; i++) outputs[i] = 0;
    for (ptrdiff_t start = 0; start < length; start += TILE) {
        const int count = (int)(length - start < TILE ? length - start : TILE);
        for (int token = 0; token < count; token++) {
            const ptrdiff_t at = (*table * now->page_size + row) * row_size + head * dims;
            keys[token] = now->keys + at;
            values[token] = now->values + at;
            if (++row == now->page_size) table++, row = 0;
        }
        for (ptrdiff_t member = 0; member < group; member++)
            see_tile(&seen[member], queries + member * dims, keys, values, outputs + member * dims, count, dims);
    }
    for (ptrdiff_t member = 0; member < group; member++) {
        for (ptrdiff_t dim = 0; dim < dims && length > 0; dim++) outputs[member * dims + dim] /= seen[member].sum;
        now->lses[first + member] = length > 0 ? seen[member].highest + logf(seen[member].sum) : -INFINITY;
    }
}

static int is_supported(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#else

static void attend(const struct call *now, ptrdiff_t sequence, ptrdiff_t head) {}

static int is_supported(void)
{
    return 0;
}

#endif

static PyObject *decode(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    ptrdiff_t numbers[13];
    if (count != 13) {
        PyErr_Format(PyExc_TypeError, "decode takes 13 numbers, got %zd", count);
        return NULL;
    }
    for (int i = 0; i < 13; i++) {
        numbers[i] = PyLong_AsSsize_t(args[i]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    const struct call now = {
        .queries = (const float *)numbers[0],
        .keys = (const float *)numbers[1],
        .values = (const float *)numbers[2],
        .tables = (const int64_t *)numbers[3],
        .lengths = (const int64_t *)numbers[4],
        .outputs = (float *)numbers[5],
        .lses = (float *)numbers[6],
        .batch = numbers[7],
        .kv_heads = numbers[8],
        .group = numbers[9],
        .dims = numbers[10],
        .page_size = numbers[11],
        .columns = numbers[12],
    };
    Py_BEGIN_ALLOW_THREADS
    for (ptrdiff_t sequence = 0; sequence < now.batch; sequence++)
        for (ptrdiff_t head = 0; head < now.kv_heads; head++) attend(&now, sequence, head);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"decode", (PyCFunction)(void (*)(void))decode, METH_FASTCALL, "See paged_decode_compiled.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_paged_decode", .m_size = -1, .m_methods = functions,
};

PyMODINIT_FUNC PyInit__paged_decode(void)
{
    if (!is_supported()) {
        PyErr_SetString(PyExc_ImportError, "the processor does not have AVX2");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "MOST_GROUP", MOST_GROUP) < 0)
        Py_CLEAR(module);
    return module;
}
