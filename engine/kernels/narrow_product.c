/* Products of a few rows with weights that are kept in one or two bytes each, and widened to float32 on the way.

   A product with few rows takes as long as its weights take to be read, so half the bytes are half the time. What a
   weight is widened to is exactly the float32 that it was narrowed from; narrow_product.py sees to that, and says how
   weights lie. Here are pointers only: that caller answers for what they point to.

   There is one body for all instruction sets, narrow_panel.h. On a processor that has none of them the module cannot be
   imported, as where this file was never compiled. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum form { CODES = 0, BFLOAT16 = 1, FLOAT16 = 2 };

struct product {
    const float *states;    /* [rows][width] */
    const void *weights;    /* [panels][width][PANEL], of one or two bytes */
    const uint16_t *grids;  /* [panels][blocks][2][PANEL], float16: scales and offsets of CODES, else nothing */
    float *result;          /* [rows][outputs] */
    ptrdiff_t rows, width, outputs;
};

#define PANEL 16  /* outputs computed at once, each in a lane of its own */
#define BLOCK 32  /* neighbouring weights of one output that have a scale and an offset together */

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define UNROLLED _Pragma("GCC unroll 16")
#define JOIN(name, suffix) name##_##suffix
#define NAMED(name, suffix) JOIN(name, suffix)
#define NAME(name) NAMED(name, ISA)

#define ISA avx512
#define TARGET __attribute__((target("avx512f,avx512bw")))
#define LANES 16
#define ROWS_AT_ONCE 8 /* their sums stay in registers */
#define FLOATS __m512
#define ZERO() _mm512_setzero_ps()
#define EVERYWHERE(value) _mm512_set1_ps(value)
#define MULTIPLY_ADD(a, b, c) _mm512_fmadd_ps(a, b, c)
#define STORE(to, value) _mm512_storeu_ps(to, value)
#define OF_CODES(from) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from))))
#define OF_BFLOAT16(from) \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(from))), 16))
#define OF_FLOAT16(from) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from)))
#include "narrow_panel.h"

#define ISA avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define LANES 8
#define ROWS_AT_ONCE 4
#define FLOATS __m256
#define ZERO() _mm256_setzero_ps()
#define EVERYWHERE(value) _mm256_set1_ps(value)
#define MULTIPLY_ADD(a, b, c) _mm256_fmadd_ps(a, b, c)
#define STORE(to, value) _mm256_storeu_ps(to, value)
#define OF_CODES(from) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(from))))
#define OF_BFLOAT16(from) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(from))), 16))
#define OF_FLOAT16(from) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from)))
#include "narrow_panel.h"

static void (*const products[])(enum form, const struct product *) = {product_avx2, product_avx512};

/* How many of them this processor can run, from the first on. */
static int count_sets(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) /* F16C is older than AVX2 */
        return 0;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") ? 2 : 1;
}

#else

static void (*const products[1])(enum form, const struct product *);

static int count_sets(void)
{
    return 0;
}

#endif

static PyObject *product(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    ptrdiff_t numbers[9];
    if (count != 9) {
        PyErr_Format(PyExc_TypeError, "product takes 9 numbers, got %zd", count);
        return NULL;
    }
    for (int i = 0; i < 9; i++) {
        numbers[i] = PyLong_AsSsize_t(args[i]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    const struct product now = {
        .states = (const float *)numbers[2],
        .weights = (const void *)numbers[3],
        .grids = (const uint16_t *)numbers[4],
        .result = (float *)numbers[5],
        .rows = numbers[6],
        .width = numbers[7],
        .outputs = numbers[8],
    };
    Py_BEGIN_ALLOW_THREADS
    products[numbers[0]]((enum form)numbers[1], &now);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"product", (PyCFunction)(void (*)(void))product, METH_FASTCALL, "See narrow_product.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_narrow_product", .m_size = -1, .m_methods = functions,
};

PyMODINIT_FUNC PyInit__narrow_product(void)
{
    const int sets = count_sets();
    if (sets == 0) {
        PyErr_SetString(PyExc_ImportError, "the processor does not have AVX2");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "SETS", sets) < 0)
        Py_CLEAR(module);
    return module;
}
