/* A map from 64-bit words to 64-bit words: the compiled form of router.intake.plain_table.Table, tested equal to it.
 *
 * Open addressing with linear probing in one array of (key, value), so an entry takes 16 bytes over a load between three
 * eighths and three quarters, where a dict of ints takes about 140. Whole blocks of keys come and go in one call each. The
 * key 0 marks a free slot, so its value lives beside the array. Methods change nothing before their arguments are read.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#if !defined(__SIZEOF_INT128__)
#error "needs 128-bit products; router.intake.plain_table works without this module"
#endif

enum { SMALLEST = 16, AHEAD = 16, LARGE_PAGE = 1 << 21 };

typedef struct {
    uint64_t key, value;
} Slot;

typedef struct {
    PyObject_HEAD
    Slot *slots;
    size_t capacity, used; /* used: slots taken, so without the key 0 */
    uint64_t zero_value;
    int has_zero;
} Table;

/* Keys may be anything, small numbers too: mixed by a product, spread over the capacity by its high half. */
static inline size_t home(const Table *table, uint64_t key)
{
    return (size_t)(((unsigned __int128)(key * 0x9E3779B97F4A7C15ULL) * table->capacity) >> 64);
}

static inline size_t next(const Table *table, size_t place) { return place + 1 == table->capacity ? 0 : place + 1; }

/* The slot of a key, or the free one where it would go. */
static inline Slot *seek(const Table *table, uint64_t key)
{
    size_t place = home(table, key);
    while (table->slots[place].key && table->slots[place].key != key)
        place = next(table, place);
    return &table->slots[place];
}

/* Free slots. Many of them lie in large pages where there are any: a look-up goes anywhere, and small ones would each
 * cost a fault at first and a walk of page tables ever after. */
static Slot *new_slots(size_t capacity)
{
#if defined(MADV_HUGEPAGE)
    size_t bytes = capacity * sizeof(Slot);
    void *slots;
    if (bytes >= 2 * LARGE_PAGE) {
        if (posix_memalign(&slots, LARGE_PAGE, bytes))
            return NULL;
        madvise(slots, bytes, MADV_HUGEPAGE);
        return memset(slots, 0, bytes);
    }
#endif
    return calloc(capacity, sizeof(Slot));
}

static int resize(Table *table, size_t capacity)
{
    Slot *old = table->slots, *end = old + (old ? table->capacity : 0);
    Slot *slots = new_slots(capacity);
    if (slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    table->slots = slots;
    table->capacity = capacity;
    for (Slot *slot = old; slot < end; slot++)
        if (slot->key)
            *seek(table, slot->key) = *slot;
    free(old);
    return 0;
}

/* Make room for more keys at a load of at most three quarters. Twice the room, since growing costs more than what is done
 * in between, most of it for memory that nobody has touched yet. */
static int reserve(Table *table, size_t more)
{
    size_t need = (table->used + more) / 3 * 4 + 4;
    if (table->slots && need <= table->capacity)
        return 0;
    size_t grown = table->capacity * 2;
    return resize(table, need > grown ? need > SMALLEST ? need : SMALLEST : grown);
}

static uint64_t *find(Table *table, uint64_t key)
{
    if (!key)
        return table->has_zero ? &table->zero_value : NULL;
    if (!table->used)
        return NULL;
    Slot *slot = seek(table, key);
    return slot->key ? &slot->value : NULL;
}

/* Where to put the value of a key, for which there must be room; ``known`` tells whether it had one. */
static uint64_t *place_of(Table *table, uint64_t key, int *known)
{
    if (!key) {
        *known = table->has_zero;
        table->has_zero = 1;
        return &table->zero_value;
    }
    Slot *slot = seek(table, key);
    *known = slot->key != 0;
    table->used += !*known;
    slot->key = key;
    return &slot->value;
}

/* Free a slot by moving back those behind it that are not at home: no marks of the dead, which would only pile up. */
static void vacate(Table *table, Slot *slot)
{
    size_t hole = (size_t)(slot - table->slots);
    for (size_t place = next(table, hole); table->slots[place].key; place = next(table, place)) {
        size_t wanted = home(table, table->slots[place].key);
        int movable = hole <= place ? wanted <= hole || wanted > place : wanted <= hole && wanted > place;
        if (movable) {
            table->slots[hole] = table->slots[place];
            hole = place;
        }
    }
    table->slots[hole].key = 0;
    table->used--;
}

static void erase(Table *table, uint64_t key)
{
    if (key)
        vacate(table, seek(table, key));
    else
        table->has_zero = 0;
}

static int shrink(Table *table)
{
    return table->capacity > SMALLEST && table->used < table->capacity / 4 ? resize(table, table->used * 2 + SMALLEST) : 0;
}

/* Words out of Python: one, or many as a buffer of u64 or as a sequence of ints. */

static int read_word(PyObject *number, void *word)
{
    if (!PyLong_Check(number)) {
        PyErr_Format(PyExc_TypeError, "a word is an int, not %.100s", Py_TYPE(number)->tp_name);
        return 0;
    }
    *(uint64_t *)word = PyLong_AsUnsignedLongLong(number);
    return *(uint64_t *)word != UINT64_MAX || !PyErr_Occurred();
}

typedef struct {
    const uint64_t *at;
    Py_ssize_t count;
    uint64_t *owned;
    Py_buffer view;
} Words;

static void release(Words *words)
{
    PyMem_Free(words->owned);
    words->owned = NULL;
    if (words->view.obj)
        PyBuffer_Release(&words->view);
}

static int read_sequence(PyObject *source, Words *words)
{
    PyObject *items = PySequence_Fast(source, "words are a sequence of ints");
    if (items == NULL)
        return 0;
    words->count = PySequence_Fast_GET_SIZE(items);
    words->at = words->owned = PyMem_New(uint64_t, words->count + 1);
    int good = words->owned != NULL || (PyErr_NoMemory(), 0);
    for (Py_ssize_t place = 0; good && place < words->count; place++)
        good = read_word(PySequence_Fast_GET_ITEM(items, place), words->owned + place);
    Py_DECREF(items);
    if (!good)
        release(words);
    return good;
}

/* For "O&": called with NULL to give back what it took, where a later argument is wrong. */
static int read_words(PyObject *source, void *target)
{
    Words *words = target;
    if (source == NULL) {
        release(words);
        return 1;
    }
    memset(words, 0, sizeof *words);
    if (PyObject_CheckBuffer(source)) {
        if (PyObject_GetBuffer(source, &words->view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
            return 0;
        if (words->view.itemsize == 8 && words->view.format && !strcmp(words->view.format, "Q")) {
            words->at = words->view.buf;
            words->count = words->view.len / 8;
            return Py_CLEANUP_SUPPORTED;
        }
        release(words);
    }
    return read_sequence(source, words) ? Py_CLEANUP_SUPPORTED : 0;
}

static int append(PyObject *places, Py_ssize_t place)
{
    PyObject *number = PyLong_FromSsize_t(place);
    int status = number == NULL ? -1 : PyList_Append(places, number);
    Py_XDECREF(number);
    return status;
}

static void prefetch(const Table *table, const Words *keys)
{
    for (Py_ssize_t place = 0; table->slots && place < keys->count; place++)
        __builtin_prefetch(&table->slots[home(table, keys->at[place])]);
}

/* Methods */

PyDoc_STRVAR(get_doc, "get(key)\n--\n\nThe value of a key, or None.");

static PyObject *table_get(Table *self, PyObject *number)
{
    uint64_t key, *value;
    if (!read_word(number, &key))
        return NULL;
    value = find(self, key);
    return value ? PyLong_FromUnsignedLongLong(*value) : Py_NewRef(Py_None);
}

PyDoc_STRVAR(set_doc, "set(key, value)\n--\n\nGive a key its value, whether it had one or not.");

static PyObject *table_set(Table *self, PyObject *args)
{
    uint64_t key, value;
    int known;
    if (!PyArg_ParseTuple(args, "O&O&:set", read_word, &key, read_word, &value) || reserve(self, 1) < 0)
        return NULL;
    *place_of(self, key, &known) = value;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(pop_doc, "pop(key)\n--\n\nTake a key out; its value, or None where it was not there.");

static PyObject *table_pop(Table *self, PyObject *number)
{
    PyObject *value = table_get(self, number);
    if (value == NULL || value == Py_None)
        return value;
    erase(self, PyLong_AsUnsignedLongLong(number));
    if (shrink(self) < 0)
        Py_CLEAR(value);
    return value;
}

PyDoc_STRVAR(fill_doc, "fill(keys, values)\n--\n\n"
"Give new keys their values, or one value that is for all; the places of keys that were there, which stay as they are.");

static PyObject *table_fill(Table *self, PyObject *args)
{
    PyObject *source;
    Words keys, values = {0};
    uint64_t same = 0;
    if (!PyArg_ParseTuple(args, "O&O:fill", read_words, &keys, &source))
        return NULL;
    PyObject *known_places = PyList_New(0);
    int each = !PyLong_Check(source);
    int good = known_places && (each ? read_words(source, &values) : read_word(source, &same));
    if (good && each && values.count != keys.count) {
        PyErr_Format(PyExc_ValueError, "%zd keys, %zd values", keys.count, values.count);
        good = 0;
    }
    good = good && reserve(self, (size_t)keys.count) == 0;
    if (good)
        prefetch(self, &keys);
    for (Py_ssize_t place = 0; good && place < keys.count; place++) {
        int known;
        uint64_t *value = place_of(self, keys.at[place], &known);
        if (known)
            good = append(known_places, place) == 0;
        else
            *value = each ? values.at[place] : same;
    }
    release(&keys);
    release(&values);
    if (!good)
        Py_CLEAR(known_places);
    return known_places;
}

PyDoc_STRVAR(drop_doc, "drop(keys, value)\n--\n\n"
"Take out the keys that have this value; the places of the others, which stay as they are.");

static PyObject *table_drop(Table *self, PyObject *args)
{
    Words keys;
    uint64_t value;
    if (!PyArg_ParseTuple(args, "O&O&:drop", read_words, &keys, read_word, &value))
        return NULL;
    PyObject *others = PyList_New(0);
    prefetch(self, &keys);
    for (Py_ssize_t place = 0; others && place < keys.count; place++) {
        uint64_t *found = find(self, keys.at[place]);
        if (found && *found == value)
            erase(self, keys.at[place]);
        else if (append(others, place) < 0)
            Py_CLEAR(others);
    }
    release(&keys);
    if (shrink(self) < 0)
        Py_CLEAR(others);
    return others;
}

PyDoc_STRVAR(take_doc, "take(keys)\n--\n\nTake keys out; their values as a list, None where one was not there.");

static PyObject *table_take(Table *self, PyObject *source)
{
    Words keys;
    if (!read_words(source, &keys))
        return NULL;
    PyObject *values = PyList_New(keys.count);
    prefetch(self, &keys);
    for (Py_ssize_t place = 0; values && place < keys.count; place++) {
        uint64_t *found = find(self, keys.at[place]);
        PyObject *value = found ? PyLong_FromUnsignedLongLong(*found) : Py_NewRef(Py_None);
        if (value == NULL) {
            Py_CLEAR(values);
            break;
        }
        PyList_SET_ITEM(values, place, value);
        if (found)
            erase(self, keys.at[place]);
    }
    release(&keys);
    if (shrink(self) < 0)
        Py_CLEAR(values);
    return values;
}

PyDoc_STRVAR(run_doc, "run(keys, start)\n--\n\n"
"From a place on: the place at which keys stop having the first one's value, and that value, None for absence.");

static PyObject *table_run(Table *self, PyObject *args)
{
    Words keys;
    Py_ssize_t place;
    if (!PyArg_ParseTuple(args, "O&n:run", read_words, &keys, &place))
        return NULL;
    PyObject *result = NULL;
    if (place < 0 || place >= keys.count)
        PyErr_Format(PyExc_IndexError, "place %zd of %zd", place, keys.count);
    else {
        uint64_t *first = find(self, keys.at[place]);
        while (++place < keys.count) {
            if (self->slots && place + AHEAD < keys.count)
                __builtin_prefetch(&self->slots[home(self, keys.at[place + AHEAD])]);
            uint64_t *found = find(self, keys.at[place]);
            if (first && found ? *first != *found : first != found)
                break;
        }
        result = first ? Py_BuildValue("nK", place, (unsigned long long)*first) : Py_BuildValue("nO", place, Py_None);
    }
    release(&keys);
    return result;
}

PyDoc_STRVAR(items_doc, "items()\n--\n\nAll keys with their values, as a list in no order.");

static PyObject *table_items(Table *self, PyObject *unused)
{
    PyObject *items = PyList_New(0);
    Slot zero = {0, self->zero_value};
    for (size_t place = 0; items && place <= self->capacity; place++) {
        int last = place == self->capacity;
        Slot *slot = last ? &zero : &self->slots[place];
        if (last ? !self->has_zero : !slot->key)
            continue;
        PyObject *pair = Py_BuildValue("KK", (unsigned long long)slot->key, (unsigned long long)slot->value);
        if (pair == NULL || PyList_Append(items, pair) < 0)
            Py_CLEAR(items);
        Py_XDECREF(pair);
    }
    return items;
}

PyDoc_STRVAR(clear_doc, "clear()\n--\n\nTake all keys out, and give the memory back.");

static PyObject *table_clear(Table *self, PyObject *unused)
{
    free(self->slots);
    self->slots = NULL;
    self->capacity = self->used = 0;
    self->has_zero = 0;
    Py_RETURN_NONE;
}

static Py_ssize_t table_length(Table *self) { return (Py_ssize_t)self->used + self->has_zero; }

static int table_contains(Table *self, PyObject *number)
{
    uint64_t key;
    return read_word(number, &key) ? find(self, key) != NULL : -1;
}

static void table_dealloc(Table *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free(self->slots);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef METHODS[] = {
    {"get", (PyCFunction)table_get, METH_O, get_doc},
    {"set", (PyCFunction)table_set, METH_VARARGS, set_doc},
    {"pop", (PyCFunction)table_pop, METH_O, pop_doc},
    {"fill", (PyCFunction)table_fill, METH_VARARGS, fill_doc},
    {"drop", (PyCFunction)table_drop, METH_VARARGS, drop_doc},
    {"take", (PyCFunction)table_take, METH_O, take_doc},
    {"run", (PyCFunction)table_run, METH_VARARGS, run_doc},
    {"items", (PyCFunction)table_items, METH_NOARGS, items_doc},
    {"clear", (PyCFunction)table_clear, METH_NOARGS, clear_doc},
    {NULL},
};

static PyType_Slot TYPE_SLOTS[] = {
    {Py_tp_doc, "A map from 64-bit words to 64-bit words."},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, METHODS},
    {Py_sq_length, table_length},
    {Py_sq_contains, table_contains},
    {0, NULL},
};

static PyType_Spec TYPE = {
    .name = "router.intake._table.Table", .basicsize = sizeof(Table), .flags = Py_TPFLAGS_DEFAULT, .slots = TYPE_SLOTS};

static int execute(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&TYPE);
    int status = type == NULL ? -1 : PyModule_AddObjectRef(module, "Table", type);
    Py_XDECREF(type);
    return status;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "router.intake._table",
    .m_doc = "The compiled form of router.intake.plain_table.",
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__table(void) { return PyModuleDef_Init(&MODULE); }
