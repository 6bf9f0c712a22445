/* The usual messages of a ZMTP connection cut out of what came: what router.intake.zmtp does, without its steps in Python.
 *
 * Optional, and never the last word. ``cut`` stops at the first message that is not there as a whole, or that is
 * anything but plain: commands, unknown flags, too many frames or bytes. Then the Python goes on from there.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum { MORE = 1, LONG = 2, SHORT_HEAD = 2, LONG_HEAD = 9 };

/* The body of the frame at ``*at``, which is moved behind it; NULL where it is not whole or not plain. */
static const uint8_t *read_frame(const uint8_t **at, const uint8_t *end, uint64_t *length, int *more)
{
    const uint8_t *body = *at + SHORT_HEAD;
    if (end < body || **at & ~(MORE | LONG))
        return NULL;
    *more = **at & MORE;
    *length = (*at)[1];
    if (**at & LONG) {
        body = *at + LONG_HEAD;
        if (end < body)
            return NULL;
        *length = 0;
        for (int place = 1; place < LONG_HEAD; place++)
            *length = *length << 8 | (*at)[place];
    }
    if (*length > (uint64_t)(end - body))
        return NULL;
    *at = body + *length;
    return body;
}

/* The frames of the message at ``*at``, which is moved behind it. NULL with an exception, or without one where it is
 * not whole or not plain. */
static PyObject *read_message(const uint8_t **at, const uint8_t *end, uint64_t most_bytes, Py_ssize_t most_frames)
{
    PyObject *frames = PyList_New(0);
    const uint8_t *next = *at;
    for (int more = 1; frames && more;) {
        uint64_t length;
        const uint8_t *body = PyList_GET_SIZE(frames) < most_frames ? read_frame(&next, end, &length, &more) : NULL;
        PyObject *frame = body && length <= most_bytes ? PyBytes_FromStringAndSize((const char *)body, length) : NULL;
        if (frame == NULL || PyList_Append(frames, frame) < 0)
            Py_CLEAR(frames);
        else
            most_bytes -= length;
        Py_XDECREF(frame);
    }
    if (frames)
        *at = next;
    return frames;
}

PyDoc_STRVAR(cut_doc, "cut(data, at, most_bytes, most_frames)\n--\n\n"
"The plain messages that are whole, from a place on, as lists of their frames; and the place behind them.");

static PyObject *cut(PyObject *module, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t start, most_frames;
    unsigned long long most_bytes;
    if (!PyArg_ParseTuple(args, "y*nKn:cut", &view, &start, &most_bytes, &most_frames))
        return NULL;
    PyObject *messages = PyList_New(0), *result = NULL;
    if (start < 0 || start > view.len)
        PyErr_Format(PyExc_IndexError, "place %zd of %zd", start, view.len);
    else if (messages) {
        const uint8_t *data = view.buf, *at = data + start, *end = data + view.len;
        PyObject *message;
        while (!PyErr_Occurred() && (message = read_message(&at, end, most_bytes, most_frames))) {
            PyList_Append(messages, message);
            Py_DECREF(message);
        }
        if (!PyErr_Occurred())
            result = Py_BuildValue("On", messages, (Py_ssize_t)(at - data));
    }
    Py_XDECREF(messages);
    PyBuffer_Release(&view);
    return result;
}

static PyMethodDef METHODS[] = {{"cut", cut, METH_VARARGS, cut_doc}, {NULL}};

static PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "router.intake._zmtp",
    .m_doc = "The usual messages of a ZMTP connection, cut out in one pass.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__zmtp(void) { return PyModuleDef_Init(&MODULE); }
