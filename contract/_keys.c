/* The compiled core of contract.hashing: token ids out of lists, out of JSON and into it, and the key
 * chain over them.
 *
 * Optional. Everything here answers as contract.plain_keys does, or None where it leaves the work to Python: big ids,
 * subclasses of int, anything that is no list, numbers that are not written as plain ints. No state, no I/O.
 *
 * XXH3 (64 bits, seeded) is written from the specification of xxHash 0.8; its constants are those of the specification.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if !defined(__SIZEOF_INT128__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "needs 128-bit products and a little-endian machine; contract.hashing works without this module"
#endif

/* XXH3 */

#define P32_1 0x9E3779B1ULL
#define P32_2 0x85EBCA77ULL
#define P32_3 0xC2B2AE3DULL
#define P64_1 0x9E3779B185EBCA87ULL
#define P64_2 0xC2B2AE3D27D4EB4FULL
#define P64_3 0x165667B19E3779F9ULL
#define P64_4 0x85EBCA77C2B2AE63ULL
#define P64_5 0x27D4EB2F165667C5ULL
#define MX_1 0x165667919E3779F9ULL
#define MX_2 0x9FB21C651E98DF25ULL

enum { STRIPE = 64, LANES = 8, SECRET = 192, STRIPES_A_BLOCK = (SECRET - STRIPE) / 8 };

static const uint8_t DEFAULT_SECRET[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint32_t read32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return value; }
static inline uint64_t read64(const uint8_t *at) { uint64_t value; memcpy(&value, at, 8); return value; }
static inline uint64_t rotate(uint64_t value, int by) { return (value << by) | (value >> (64 - by)); }

static inline uint64_t folded(uint64_t left, uint64_t right)
{
    unsigned __int128 product = (unsigned __int128)left * right;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t avalanche(uint64_t hash)
{
    hash = (hash ^ (hash >> 37)) * MX_1;
    return hash ^ (hash >> 32);
}

static inline uint64_t mix16(const uint8_t *at, const uint8_t *secret, uint64_t seed)
{
    return folded(read64(at) ^ (read64(secret) + seed), read64(at + 8) ^ (read64(secret + 8) - seed));
}

static uint64_t hash_4_to_8(const uint8_t *data, size_t length, uint64_t seed)
{
    seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
    uint64_t flip = (read64(DEFAULT_SECRET + 8) ^ read64(DEFAULT_SECRET + 16)) - seed;
    uint64_t hash = (read32(data + length - 4) + ((uint64_t)read32(data) << 32)) ^ flip;
    hash ^= rotate(hash, 49) ^ rotate(hash, 24);
    hash *= MX_2;
    hash ^= (hash >> 35) + length;
    hash *= MX_2;
    return hash ^ (hash >> 28);
}

static uint64_t hash_9_to_16(const uint8_t *data, size_t length, uint64_t seed)
{
    uint64_t low = read64(data) ^ ((read64(DEFAULT_SECRET + 24) ^ read64(DEFAULT_SECRET + 32)) + seed);
    uint64_t high = read64(data + length - 8) ^ ((read64(DEFAULT_SECRET + 40) ^ read64(DEFAULT_SECRET + 48)) - seed);
    return avalanche(length + __builtin_bswap64(low) + high + folded(low, high));
}

static uint64_t hash_17_to_128(const uint8_t *data, size_t length, uint64_t seed)
{
    uint64_t hash = length * P64_1;
    for (size_t pair = (length - 1) / 32 + 1; pair-- > 0;) {
        hash += mix16(data + 16 * pair, DEFAULT_SECRET + 32 * pair, seed);
        hash += mix16(data + length - 16 * (pair + 1), DEFAULT_SECRET + 32 * pair + 16, seed);
    }
    return avalanche(hash);
}

static uint64_t hash_129_to_240(const uint8_t *data, size_t length, uint64_t seed)
{
    uint64_t hash = length * P64_1;
    for (size_t round = 0; round < 8; round++)
        hash += mix16(data + 16 * round, DEFAULT_SECRET + 16 * round, seed);
    hash = avalanche(hash);
    for (size_t round = 8; round < length / 16; round++)
        hash += mix16(data + 16 * round, DEFAULT_SECRET + 16 * (round - 8) + 3, seed);
    return avalanche(hash + mix16(data + length - 16, DEFAULT_SECRET + 136 - 17, seed));
}

static inline void accumulate(uint64_t *sums, const uint8_t *stripe, const uint8_t *secret)
{
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t value = read64(stripe + 8 * lane), keyed = value ^ read64(secret + 8 * lane);
        sums[lane ^ 1] += value;
        sums[lane] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
    }
}

static void scramble(uint64_t *sums, const uint8_t *secret)
{
    for (int lane = 0; lane < LANES; lane++)
        sums[lane] = (sums[lane] ^ (sums[lane] >> 47) ^ read64(secret + 8 * lane)) * P32_1;
}

static void seeded_secret(uint8_t *secret, uint64_t seed)
{
    for (int at = 0; at < SECRET; at += 16) {
        uint64_t low = read64(DEFAULT_SECRET + at) + seed, high = read64(DEFAULT_SECRET + at + 8) - seed;
        memcpy(secret + at, &low, 8);
        memcpy(secret + at + 8, &high, 8);
    }
}

static uint64_t hash_long(const uint8_t *data, size_t length, uint64_t seed)
{
    uint8_t secret[SECRET];
    uint64_t sums[LANES] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    seeded_secret(secret, seed);
    size_t stripes = (length - 1) / STRIPE;
    for (size_t stripe = 0; stripe < stripes; stripe++) {
        size_t place = stripe % STRIPES_A_BLOCK;
        accumulate(sums, data + STRIPE * stripe, secret + 8 * place);
        if (place == STRIPES_A_BLOCK - 1)
            scramble(sums, secret + SECRET - STRIPE);
    }
    accumulate(sums, data + length - STRIPE, secret + SECRET - STRIPE - 7);
    uint64_t hash = length * P64_1;
    for (int pair = 0; pair < LANES / 2; pair++)
        hash += folded(sums[2 * pair] ^ read64(secret + 11 + 16 * pair), sums[2 * pair + 1] ^ read64(secret + 19 + 16 * pair));
    return avalanche(hash);
}

/* Hash of at least four bytes: a block has at least one id. */
static uint64_t xxh3(const uint8_t *data, size_t length, uint64_t seed)
{
    if (length <= 8)
        return hash_4_to_8(data, length, seed);
    if (length <= 16)
        return hash_9_to_16(data, length, seed);
    if (length <= 128)
        return hash_17_to_128(data, length, seed);
    return length <= 240 ? hash_129_to_240(data, length, seed) : hash_long(data, length, seed);
}

PyDoc_STRVAR(chain_doc, "chain(ids, width, parent)\n--\n\n"
"Keys, as packed u64, of the full blocks of width ids; ids is a buffer of packed u32.");

static PyObject *chain(PyObject *module, PyObject *args)
{
    Py_buffer ids;
    Py_ssize_t width;
    PyObject *parent;
    if (!PyArg_ParseTuple(args, "y*nO!:chain", &ids, &width, &PyLong_Type, &parent))
        return NULL;
    PyObject *keys = NULL;
    uint64_t key = PyLong_AsUnsignedLongLong(parent);
    if (PyErr_Occurred())
        goto done;
    if (width <= 0 || width > PY_SSIZE_T_MAX / 4) {
        PyErr_Format(PyExc_ValueError, "a block has at least one id, got a width of %zd", width);
        goto done;
    }
    Py_ssize_t step = 4 * width, blocks = ids.len / step;
    keys = PyBytes_FromStringAndSize(NULL, 8 * blocks);
    if (keys == NULL)
        goto done;
    char *out = PyBytes_AS_STRING(keys);
    for (Py_ssize_t block = 0; block < blocks; block++) {
        key = xxh3((const uint8_t *)ids.buf + block * step, (size_t)step, key);
        memcpy(out + 8 * block, &key, 8);
    }
done:
    PyBuffer_Release(&ids);
    return keys;
}

/* Ids out of lists */

enum { AHEAD = 64 };

/* The id that an object is, or a negative number where it is none that fits. Small ints are read without a call. */
static inline long long id_of(PyObject *object)
{
    if (!PyLong_CheckExact(object))
        return -1;
#if PY_VERSION_HEX >= 0x030C0000
    if (PyUnstable_Long_IsCompact((PyLongObject *)object))
        return PyUnstable_Long_CompactValue((PyLongObject *)object);
#else
    if (Py_SIZE(object) == 1)
        return ((PyLongObject *)object)->ob_digit[0];
#endif
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow || value > UINT32_MAX ? -1 : value;
}

PyDoc_STRVAR(pack_list_doc, "pack_list(ids)\n--\n\n"
"A list of ids as packed u32, or None unless each is an int that fits.");

static PyObject *pack_list(PyObject *module, PyObject *list)
{
    if (!PyList_CheckExact(list))
        Py_RETURN_NONE;
    Py_ssize_t count = PyList_GET_SIZE(list);
    PyObject *packed = PyBytes_FromStringAndSize(NULL, 4 * count);
    if (packed == NULL)
        return NULL;
    char *out = PyBytes_AS_STRING(packed);
    for (Py_ssize_t place = 0; place < count; place++) {
        if (place + AHEAD < count)
            __builtin_prefetch(PyList_GET_ITEM(list, place + AHEAD));
        long long value = id_of(PyList_GET_ITEM(list, place));
        if (value < 0) {
            Py_DECREF(packed);
            Py_RETURN_NONE;
        }
        uint32_t id = (uint32_t)value;
        memcpy(out + 4 * place, &id, 4);
    }
    return packed;
}

/* Ids out of JSON */

#define EACH_BYTE 0x0101010101010101ULL
enum { WORD = 8, MOST_DIGITS = 10 };

static inline const uint8_t *after_space(const uint8_t *at, const uint8_t *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r'))
        at++;
    return at;
}

/* Digits that a word of text begins with, 8 where it is nothing else. A byte is a digit where neither it nor 6 more
 * leaves the sixteen values that begin with '0'; a carry out of a byte can only follow one that is no digit. */
static inline int digits_in(uint64_t word)
{
    uint64_t high = 0xF0 * EACH_BYTE, zeros = '0' * EACH_BYTE;
    uint64_t other = ((word & high) ^ zeros) | (((word + 6 * EACH_BYTE) & high) ^ zeros);
    return other ? __builtin_ctzll(other) / 8 : WORD;
}

/* The number that the first 1 to 8 digits of a word are: neighbours are joined to pairs, fours, eight. */
static inline uint32_t number_in(uint64_t word, int digits)
{
    word = (word & 0x0F * EACH_BYTE) << (64 - 8 * digits);
    word = (word * 10 + (word >> 8)) & 0x00FF00FF00FF00FFULL;
    word = (word * 100 + (word >> 16)) & 0x0000FFFF0000FFFFULL;
    return (uint32_t)(word * 10000 + (word >> 32));
}

/* Reads an int without a sign; where it ends, or NULL where there is none, or one that is too long or begins with 0. */
static inline const uint8_t *read_number(const uint8_t *at, const uint8_t *end, uint64_t *value)
{
    if (end - at >= WORD) {
        uint64_t word = read64(at);
        int digits = digits_in(word);
        if (digits > 0 && digits < WORD) {
            *value = number_in(word, digits);
            return digits > 1 && *at == '0' ? NULL : at + digits;
        }
    }
    const uint8_t *start = at;
    for (*value = 0; at < end && *at >= '0' && *at <= '9' && at - start < MOST_DIGITS; at++)
        *value = 10 * *value + (*at - '0');
    return at == start || (*start == '0' && at - start > 1) ? NULL : at;
}

/* Ids of a JSON array, written to out, which has room for one for every two bytes; -1 where it is not as it should be. */
static Py_ssize_t read_array(const uint8_t *at, const uint8_t *end, uint64_t below, uint32_t *out)
{
    Py_ssize_t count = 0;
    at = after_space(at, end);
    if (at == end || *at != '[')
        return -1;
    do {
        uint64_t value;
        at = read_number(after_space(at + 1, end), end, &value);
        if (at == NULL || value >= below)
            return -1;
        out[count++] = (uint32_t)value;
        at = after_space(at, end);
    } while (at < end && *at == ',');
    return at < end && *at == ']' && after_space(at + 1, end) == end ? count : -1;
}

PyDoc_STRVAR(read_ids_doc, "read_ids(json, below)\n--\n\n"
"A JSON array of at least one id as packed u32, or None unless each is an int in [0, below).");

static PyObject *read_ids(PyObject *module, PyObject *args)
{
    Py_buffer json;
    Py_ssize_t below;
    if (!PyArg_ParseTuple(args, "y*n:read_ids", &json, &below))
        return NULL;
    uint64_t limit = below < 0 ? 0 : below > UINT32_MAX ? (uint64_t)UINT32_MAX + 1 : (uint64_t)below;
    PyObject *packed = PyBytes_FromStringAndSize(NULL, 4 * (json.len / 2));
    Py_ssize_t count = -1;
    if (packed != NULL) {
        const uint8_t *text = json.buf;
        count = read_array(text, text + json.len, limit, (uint32_t *)PyBytes_AS_STRING(packed));
    }
    PyBuffer_Release(&json);
    if (packed == NULL)
        return NULL;
    if (count < 0) {
        Py_DECREF(packed);
        Py_RETURN_NONE;
    }
    _PyBytes_Resize(&packed, 4 * count);
    return packed;
}

/* Ids into JSON */

/* Writes a number that ends before end; where it begins. */
static inline uint8_t *write_number(uint8_t *end, uint32_t value)
{
    do {
        *--end = (uint8_t)('0' + value % 10);
        value /= 10;
    } while (value);
    return end;
}

PyDoc_STRVAR(write_ids_doc, "write_ids(ids)\n--\n\n"
"A JSON array of ids, which are a buffer of packed u32.");

static PyObject *write_ids(PyObject *module, PyObject *packed)
{
    Py_buffer ids;
    if (PyObject_GetBuffer(packed, &ids, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_ssize_t count = ids.len / 4;
    PyObject *json = PyBytes_FromStringAndSize(NULL, 2 + (MOST_DIGITS + 1) * count);
    if (json != NULL) {
        uint8_t *start = (uint8_t *)PyBytes_AS_STRING(json), *at = start, digits[MOST_DIGITS];
        *at++ = '[';
        for (Py_ssize_t place = 0; place < count; place++) {
            const uint8_t *first = write_number(digits + MOST_DIGITS, read32((const uint8_t *)ids.buf + 4 * place));
            size_t length = (size_t)(digits + MOST_DIGITS - first);
            memcpy(at, first, length);
            at += length;
            *at++ = ',';
        }
        at -= count > 0;
        *at++ = ']';
        _PyBytes_Resize(&json, at - start);
    }
    PyBuffer_Release(&ids);
    return json;
}

static PyMethodDef METHODS[] = {
    {"chain", chain, METH_VARARGS, chain_doc},
    {"pack_list", pack_list, METH_O, pack_list_doc},
    {"read_ids", read_ids, METH_VARARGS, read_ids_doc},
    {"write_ids", write_ids, METH_O, write_ids_doc},
    {NULL},
};

static PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "contract._keys",
    .m_doc = "The compiled core of contract.hashing.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__keys(void) { return PyModuleDef_Init(&MODULE); }
