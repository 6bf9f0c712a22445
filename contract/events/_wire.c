/* The usual event batch read in one pass: what contract.events.decode does, without an int object for each token id.
 *
 * Optional, and never the last word. ``read_batch`` answers None for whatever is not plain: batches that are maps, token
 * pairs, ids above 32 bits, extra keys, metadata, unknown or doubled fields, wrong types, broken text, bytes left over.
 * Then the tolerant decoder reads the payload from its start, so this file decides about no event. No state, no I/O.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "needs a little-endian machine; contract.events.decode works without this module"
#endif

typedef struct {
    const uint8_t *at, *end;
} Reader;

/* Every reader below answers NULL (or 0, or -1) where it gives up; an exception may be set then, or not. */

static inline uint64_t big_endian(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int place = 0; place < bytes; place++)
        value = value << 8 | at[place];
    return value;
}

static int take_number(Reader *reader, int bytes, uint64_t *value)
{
    if (reader->end - reader->at < bytes)
        return 0;
    *value = big_endian(reader->at, bytes);
    reader->at += bytes;
    return 1;
}

/* The length of what starts here: of a container whose short form is ``head`` (up to ``most``) and whose long forms
 * begin at ``wide`` with so many length bytes, then twice as many, and so on. */
static Py_ssize_t read_length(Reader *reader, uint8_t head, uint8_t most, uint8_t wide, int bytes)
{
    if (reader->at >= reader->end)
        return -1;
    uint8_t byte = *reader->at++;
    uint64_t length;
    if (most && byte >= head && byte <= head + most)
        return byte - head;
    int step = byte - wide;
    if (step < 0 || step > 2 || bytes << step > 4 || !take_number(reader, bytes << step, &length))
        return -1;
    return (Py_ssize_t)length;
}

static Py_ssize_t read_array(Reader *reader) { return read_length(reader, 0x90, 15, 0xDC, 2); }
static Py_ssize_t read_map(Reader *reader) { return read_length(reader, 0x80, 15, 0xDE, 2); }

/* The bytes of a text, or of a digest. */
static const char *read_bytes(Reader *reader, int text, Py_ssize_t *length)
{
    *length = text ? read_length(reader, 0xA0, 31, 0xD9, 1) : read_length(reader, 0, 0, 0xC4, 1);
    if (*length < 0 || reader->end - reader->at < *length)
        return NULL;
    reader->at += *length;
    return (const char *)reader->at - *length;
}

/* An int as the 64 bits that stand for it. */
static inline int read_int(Reader *reader, uint64_t *value, int *negative)
{
    if (reader->at >= reader->end)
        return 0;
    uint8_t head = *reader->at++;
    *negative = head >= 0xE0;
    if (head <= 0x7F || head >= 0xE0) {
        *value = (uint64_t)(int64_t)(int8_t)head;
        return 1;
    }
    int bytes = 1 << (head & 3);
    if (head < 0xCC || head > 0xD3 || !take_number(reader, bytes, value))
        return 0;
    if (head >= 0xD0 && *value >> (8 * bytes - 1)) {
        *negative = 1;
        *value |= bytes == 8 ? 0 : ~0ULL << (8 * bytes);
    }
    return 1;
}

static PyObject *read_nil(Reader *reader)
{
    if (reader->at >= reader->end || *reader->at != 0xC0)
        return NULL;
    reader->at++;
    return Py_NewRef(Py_None);
}

static PyObject *read_number(Reader *reader)
{
    uint64_t value;
    int negative;
    if (!read_int(reader, &value, &negative))
        return NULL;
    return negative ? PyLong_FromLongLong((long long)value) : PyLong_FromUnsignedLongLong(value);
}

static PyObject *read_size(Reader *reader)
{
    uint64_t value;
    int negative;
    return read_int(reader, &value, &negative) && !negative ? PyLong_FromUnsignedLongLong(value) : NULL;
}

static PyObject *read_text(Reader *reader)
{
    Py_ssize_t length;
    const char *text = read_bytes(reader, 1, &length);
    return text ? PyUnicode_DecodeUTF8(text, length, NULL) : NULL;
}

/* An engine's name for a block: the unsigned int of 64 bits, however it was sent, or the bytes of a digest. */
static PyObject *read_hash(Reader *reader)
{
    if (reader->at < reader->end && *reader->at >= 0xC4 && *reader->at <= 0xC6) {
        Py_ssize_t length;
        const char *digest = read_bytes(reader, 0, &length);
        return digest ? PyBytes_FromStringAndSize(digest, length) : NULL;
    }
    uint64_t value;
    int negative;
    return read_int(reader, &value, &negative) ? PyLong_FromUnsignedLongLong(value) : NULL;
}

static PyObject *read_hashes(Reader *reader)
{
    Py_ssize_t count = read_array(reader);
    PyObject *hashes = count < 0 || count > reader->end - reader->at ? NULL : PyList_New(count);
    for (Py_ssize_t place = 0; hashes && place < count; place++) {
        PyObject *hash = read_hash(reader);
        if (hash)
            PyList_SET_ITEM(hashes, place, hash);
        else
            Py_CLEAR(hashes);
    }
    return hashes;
}

/* vLLM lists for each block what it is beyond its tokens; here only that none is more. */
static PyObject *read_nils(Reader *reader)
{
    Py_ssize_t count = read_array(reader);
    PyObject *nils = count < 0 || count > reader->end - reader->at ? NULL : PyList_New(count);
    for (Py_ssize_t place = 0; nils && place < count; place++) {
        PyObject *nil = read_nil(reader);
        if (nil)
            PyList_SET_ITEM(nils, place, nil);
        else
            Py_CLEAR(nils);
    }
    return nils;
}

static const uint8_t SMALL_BYTES[] = {1, 2, 4, 0};

/* An int of at most four bytes, not at the very end. Without a branch on its length, which nobody can predict. */
static inline int read_small(Reader *reader, uint64_t *value)
{
    if (reader->end - reader->at < 9)
        return 0;
    uint8_t head = *reader->at;
    unsigned bytes = head <= 0x7F ? 1 : SMALL_BYTES[head & 3], after = head > 0x7F;
    if (head > 0x7F && (head < 0xCC || head > 0xCE))
        return 0;
    uint64_t word;
    memcpy(&word, reader->at + after, 8);
    *value = __builtin_bswap64(word) >> (64 - 8 * bytes);
    reader->at += after + bytes;
    return 1;
}

/* Token ids as packed u32. */
static PyObject *read_ids(Reader *reader)
{
    Py_ssize_t count = read_array(reader);
    PyObject *packed = count < 0 || count > reader->end - reader->at ? NULL : PyBytes_FromStringAndSize(NULL, 4 * count);
    for (Py_ssize_t place = 0; packed && place < count; place++) {
        uint64_t value;
        int negative = 0;
        if (read_small(reader, &value) || (read_int(reader, &value, &negative) && !negative && value <= UINT32_MAX)) {
            uint32_t id = (uint32_t)value;
            memcpy(PyBytes_AS_STRING(packed) + 4 * place, &id, 4);
        } else
            Py_CLEAR(packed);
    }
    return packed;
}

/* Events */

typedef struct {
    const char *name;
    PyObject *(*read)(Reader *);
    int may_be_nil;
} Field;

enum { HASHES, PARENT, IDS, SIZE, LORA_ID, MEDIUM, LORA_NAME, EXTRA_KEYS, GROUP, KIND, WINDOW, SALT, SESSION, FIELDS };

/* In the order of vLLM's arrays; the last two are in maps only. */
static const Field STORED[FIELDS] = {
    [HASHES] = {"block_hashes", read_hashes, 0},
    [PARENT] = {"parent_block_hash", read_hash, 1},
    [IDS] = {"token_ids", read_ids, 0},
    [SIZE] = {"block_size", read_size, 0},
    [LORA_ID] = {"lora_id", read_number, 1},
    [MEDIUM] = {"medium", read_text, 1},
    [LORA_NAME] = {"lora_name", read_text, 1},
    [EXTRA_KEYS] = {"extra_keys", read_nils, 1},
    [GROUP] = {"group_idx", read_number, 1},
    [KIND] = {"kv_cache_spec_kind", read_text, 1},
    [WINDOW] = {"kv_cache_spec_sliding_window", read_number, 1},
    [SALT] = {"cache_salt", read_text, 1},
    [SESSION] = {"session_id", read_text, 1},
};
static const int STORED_ARRAY = WINDOW + 1;
static const int REMOVED_ARRAY[] = {HASHES, MEDIUM, GROUP};
enum { REMOVED = 3 };

enum { NO_TAG, TAG_STORED, TAG_REMOVED, TAG_CLEARED };

static int is(const char *text, Py_ssize_t length, const char *word)
{
    return text && (size_t)length == strlen(word) && !memcmp(text, word, length);
}

static int read_tag(Reader *reader)
{
    Py_ssize_t length;
    const char *tag = read_bytes(reader, 1, &length);
    return is(tag, length, "BlockStored")        ? TAG_STORED
           : is(tag, length, "BlockRemoved")     ? TAG_REMOVED
           : is(tag, length, "AllBlocksCleared") ? TAG_CLEARED
                                                 : NO_TAG;
}

static int read_field(Reader *reader, int field, PyObject **found)
{
    if (found[field])
        return 0;
    PyObject *nil = STORED[field].may_be_nil ? read_nil(reader) : NULL;
    found[field] = nil ? nil : STORED[field].read(reader);
    return found[field] != NULL;
}

static int read_array_event(Reader *reader, PyObject **found)
{
    Py_ssize_t count = read_array(reader) - 1;
    int tag = count < 0 ? NO_TAG : read_tag(reader);
    int most = tag == TAG_STORED ? STORED_ARRAY : tag == TAG_REMOVED ? REMOVED : 0;
    if (count > most)
        return NO_TAG;
    for (int place = 0; place < count; place++)
        if (!read_field(reader, tag == TAG_STORED ? place : REMOVED_ARRAY[place], found))
            return NO_TAG;
    return tag;
}

static int field_named(const char *name, Py_ssize_t length)
{
    int field = 0;
    while (field < FIELDS && !is(name, length, STORED[field].name))
        field++;
    return field;
}

static int read_map_event(Reader *reader, PyObject **found)
{
    int tag = NO_TAG;
    for (Py_ssize_t left = read_map(reader); left > 0; left--) {
        Py_ssize_t length;
        const char *name = read_bytes(reader, 1, &length);
        if (is(name, length, "type")) {
            if (tag || !(tag = read_tag(reader)))
                return NO_TAG;
        } else {
            int field = field_named(name, length);
            if (field == FIELDS || !read_field(reader, field, found))
                return NO_TAG;
        }
    }
    return tag;
}

/* What to make events of, given with each call: classes, the names that they take, and array.array with its code. */
typedef struct {
    PyObject *stored, *stored_names, *removed, *removed_names, *cleared, *array, *code;
} Makers;

/* An event of the fields found, which are used up; absent ones are None. */
static PyObject *made(PyObject *type, PyObject *names, PyObject **found, const int *fields, int count)
{
    PyObject *values[FIELDS];
    for (int place = 0; place < count; place++) {
        int field = fields ? fields[place] : place;
        values[place] = found[field] ? found[field] : Py_NewRef(Py_None);
        found[field] = NULL;
    }
    PyObject *event = PyObject_Vectorcall(type, values, 0, names);
    for (int place = 0; place < count; place++)
        Py_DECREF(values[place]);
    return event;
}

static PyObject *made_stored(const Makers *makers, PyObject **found)
{
    PyObject *ids = PyObject_CallFunctionObjArgs(makers->array, makers->code, found[IDS], NULL);
    if (ids == NULL)
        return NULL;
    Py_SETREF(found[IDS], ids);
    return made(makers->stored, makers->stored_names, found, NULL, FIELDS);
}

static PyObject *read_event(Reader *reader, const Makers *makers)
{
    PyObject *found[FIELDS] = {NULL}, *event = NULL;
    int is_map = reader->at < reader->end && ((*reader->at & 0xF0) == 0x80 || *reader->at >= 0xDE);
    int tag = is_map ? read_map_event(reader, found) : read_array_event(reader, found);
    if (tag == TAG_STORED && found[HASHES] && found[IDS] && found[SIZE] && (is_map || found[PARENT]))
        event = made_stored(makers, found);
    else if (tag == TAG_REMOVED && found[HASHES])
        event = made(makers->removed, makers->removed_names, found, REMOVED_ARRAY, REMOVED);
    else if (tag == TAG_CLEARED)
        event = Py_NewRef(makers->cleared);
    for (int field = 0; field < FIELDS; field++)
        if (found[field]) {  /* it was given up, or this kind of event has no such field */
            Py_CLEAR(found[field]);
            Py_CLEAR(event);
        }
    return event;
}

static PyObject *read_events(Reader *reader, const Makers *makers)
{
    Py_ssize_t count = read_array(reader);
    PyObject *events = count < 0 || count > reader->end - reader->at ? NULL : PyList_New(count);
    for (Py_ssize_t place = 0; events && place < count; place++) {
        PyObject *event = read_event(reader, makers);
        if (event)
            PyList_SET_ITEM(events, place, event);
        else
            Py_CLEAR(events);
    }
    return events;
}

static PyObject *read_time(Reader *reader)
{
    uint64_t bits;
    double seconds;
    if (reader->at >= reader->end || *reader->at++ != 0xCB || !take_number(reader, 8, &bits))
        return NULL;
    memcpy(&seconds, &bits, 8);
    return PyFloat_FromDouble(seconds);
}

static PyObject *read_whole(Reader *reader, const Makers *makers)
{
    Py_ssize_t items = read_array(reader);
    if (items < 2 || items > 3)
        return NULL;
    PyObject *time = read_time(reader), *events = time ? read_events(reader, makers) : NULL, *rank = NULL;
    if (events) {
        rank = items == 3 ? read_nil(reader) : Py_NewRef(Py_None);
        rank = rank ? rank : read_number(reader);
    }
    if (rank && reader->at == reader->end)
        return Py_BuildValue("NNN", time, events, rank);
    Py_XDECREF(time);
    Py_XDECREF(events);
    Py_XDECREF(rank);
    return NULL;
}

PyDoc_STRVAR(read_batch_doc, "read_batch(payload, makers)\n--\n\n"
"Time, events and rank of a plain batch, or None. Makers: the class of stores and STORED, that of removals and REMOVED,\n"
"a clearing, array.array and its code for u32.");

static PyObject *read_batch(PyObject *module, PyObject *args)
{
    Py_buffer view;
    Makers makers;
    if (!PyArg_ParseTuple(args, "y*(OO!OO!OOO):read_batch", &view, &makers.stored, &PyTuple_Type, &makers.stored_names,
                          &makers.removed, &PyTuple_Type, &makers.removed_names, &makers.cleared, &makers.array,
                          &makers.code))
        return NULL;
    Reader reader = {view.buf, (const uint8_t *)view.buf + view.len};
    PyObject *batch = read_whole(&reader, &makers);
    PyBuffer_Release(&view);
    if (batch || (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)))
        return batch;
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {{"read_batch", read_batch, METH_VARARGS, read_batch_doc}, {NULL}};

/* The names of fields, in the order in which events are made of them. */
static int add_names(PyObject *module, const char *name, const int *fields, int count)
{
    PyObject *names = PyTuple_New(count);
    for (int place = 0; names && place < count; place++) {
        PyObject *text = PyUnicode_InternFromString(STORED[fields ? fields[place] : place].name);
        if (text)
            PyTuple_SET_ITEM(names, place, text);
        else
            Py_CLEAR(names);
    }
    int status = names == NULL ? -1 : PyModule_AddObjectRef(module, name, names);
    Py_XDECREF(names);
    return status;
}

static int execute(PyObject *module)
{
    return add_names(module, "STORED", NULL, FIELDS) < 0 ? -1 : add_names(module, "REMOVED", REMOVED_ARRAY, REMOVED);
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "contract.events._wire",
    .m_doc = "The usual event batch read in one pass.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__wire(void) { return PyModuleDef_Init(&MODULE); }
