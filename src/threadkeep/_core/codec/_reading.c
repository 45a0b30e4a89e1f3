/* Reading what most stored segments hold: plain frames (see frame.py), and objects that are written
 * by their field numbers (see langchain_types.py).
 *
 * Whatever is unusual is left to Python: then the result is None, without an error.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define HEADER 6 /* bytes: magic, version and flags, checksum */

static PyObject *crc32_of, *first_crc; /* zlib's function; the checksum of the first two bytes */
static PyObject *dict_name, *fields_set_name, *extra_name, *private_name;

static uint64_t
little(const unsigned char *from, int width)
{
    uint64_t found = 0;
    for (int i = width - 1; i >= 0; i--) {
        found = found << 8 | from[i];
    }
    return found;
}

/* 1 if the checksum of a plain frame is right, 0 if not, -1 with an error. */
static int
is_intact(PyObject *data)
{
    const char *bytes = PyBytes_AS_STRING(data);
    PyObject *body = PyBytes_FromStringAndSize(bytes + HEADER, PyBytes_GET_SIZE(data) - HEADER);
    if (body == NULL) {
        return -1;
    }
    PyObject *found = PyObject_CallFunctionObjArgs(crc32_of, body, first_crc, NULL);
    Py_DECREF(body);
    if (found == NULL) {
        return -1;
    }
    unsigned long value = PyLong_AsUnsignedLong(found);
    Py_DECREF(found);
    if (value == (unsigned long)-1 && PyErr_Occurred()) {
        return -1;
    }
    return value == little((const unsigned char *)bytes + 2, 4);
}

/* split(data, count): the elements of a plain frame; None if it is another one, or damaged. */
static PyObject *
split(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyBytes_CheckExact(args[0]) || !PyLong_CheckExact(args[1])) {
        Py_RETURN_NONE;
    }
    const char *bytes = PyBytes_AS_STRING(args[0]);
    const unsigned char *from = (const unsigned char *)bytes;
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]), at = HEADER;
    int overflow;
    long long count = PyLong_AsLongLongAndOverflow(args[1], &overflow);
    if (size <= HEADER || from[0] != 0xB7 || from[1] != 0x10 || overflow || count < 1) {
        Py_RETURN_NONE;
    }
    int intact = is_intact(args[0]);
    if (intact <= 0) {
        if (intact < 0) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    long long stored = 0;
    for (int shift = 0;; shift += 7) {
        if (at == size || shift > 28) {
            Py_RETURN_NONE;
        }
        stored |= (long long)(from[at] & 127) << shift;
        if (from[at++] < 128) {
            break;
        }
    }
    if (stored != count) {
        Py_RETURN_NONE;
    }
    int width = 0;
    const unsigned char *sizes = NULL;
    if (count > 1) {
        width = at < size ? from[at++] : 0;
        if ((width != 1 && width != 2 && width != 4) || count > (size - at) / width) {
            Py_RETURN_NONE;
        }
        sizes = from + at;
        at += (Py_ssize_t)count * width;
        uint64_t sum = 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            sum += little(sizes + i * width, width);
        }
        if (sum != (uint64_t)(size - at)) {
            Py_RETURN_NONE;
        }
    }
    PyObject *found = PyList_New((Py_ssize_t)count);
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        Py_ssize_t own = width ? (Py_ssize_t)little(sizes + i * width, width) : size - at;
        PyObject *element = PyBytes_FromStringAndSize(bytes + at, own);
        if (element == NULL) {
            Py_CLEAR(found);
            break;
        }
        PyList_SET_ITEM(found, i, element);
        at += own;
    }
    return found;
}

/* Give each of the named fields a new container. */
static int
add_new(PyObject *state, PyObject *names, PyObject *(*make)(void))
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *value = make();
        int failed = value == NULL || PyDict_SetItem(state, PyTuple_GET_ITEM(names, i), value) < 0;
        Py_XDECREF(value);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
new_list(void)
{
    return PyList_New(0);
}

/* The `__dict__` of an instance: as langchain_types.Shape and the values say. */
static PyObject *
state_of(PyObject *shape, PyObject *values, Py_ssize_t first)
{
    PyObject *names = PyTuple_GET_ITEM(shape, 3), *gone = PyTuple_GET_ITEM(shape, 4);
    PyObject *state = PyDict_Copy(PyTuple_GET_ITEM(shape, 0));
    int failed = state == NULL || add_new(state, PyTuple_GET_ITEM(shape, 1), PyDict_New) < 0 ||
                 add_new(state, PyTuple_GET_ITEM(shape, 2), new_list) < 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *value = PyList_GET_ITEM(values, first + i);
        failed = PyDict_SetItem(state, PyTuple_GET_ITEM(names, i), value) < 0;
    }
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(gone); i++) {
        failed = PyDict_DelItem(state, PyTuple_GET_ITEM(gone, i)) < 0;
    }
    if (failed) {
        Py_CLEAR(state);
    }
    return state;
}

/* build(cls, shape, values, first, fields_set, has_extra): an instance of a model, from the values
 * from `first` on. The caller has checked their number. */
static PyObject *
build(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 6 || !PyType_Check(args[0]) || !PyTuple_Check(args[1]) ||
        PyTuple_GET_SIZE(args[1]) < 5 || !PyList_CheckExact(args[2]) || !PyLong_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "build() takes a class, a shape, values and their start");
        return NULL;
    }
    for (int i = 1; i < 5; i++) {
        if (!PyTuple_CheckExact(PyTuple_GET_ITEM(args[1], i))) {
            PyErr_SetString(PyExc_TypeError, "build() takes a shape of tuples");
            return NULL;
        }
    }
    Py_ssize_t first = PyLong_AsSsize_t(args[3]), named = PyTuple_GET_SIZE(PyTuple_GET_ITEM(args[1], 3));
    if (first < 0 || PyList_GET_SIZE(args[2]) - first != named) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "build() takes one value for each name");
        }
        return NULL;
    }
    PyTypeObject *cls = (PyTypeObject *)args[0];
    PyObject *state = state_of(args[1], args[2], first), *fields = PySet_New(args[4]), *extra = NULL;
    PyObject *made = state == NULL || fields == NULL ? NULL : cls->tp_alloc(cls, 0);
    if (made != NULL) {
        extra = args[5] == Py_True ? PyDict_New() : Py_NewRef(Py_None);
        if (extra == NULL || PyObject_GenericSetAttr(made, dict_name, state) < 0 ||
            PyObject_GenericSetAttr(made, fields_set_name, fields) < 0 ||
            PyObject_GenericSetAttr(made, extra_name, extra) < 0 ||
            PyObject_GenericSetAttr(made, private_name, Py_None) < 0) {
            Py_CLEAR(made);
        }
    }
    Py_XDECREF(state);
    Py_XDECREF(fields);
    Py_XDECREF(extra);
    return made;
}

static int
prepare(PyObject *module)
{
    PyObject *zlib = PyImport_ImportModule("zlib"), *head = NULL;
    if (zlib != NULL && crc32_of == NULL && (crc32_of = PyObject_GetAttrString(zlib, "crc32")) != NULL) {
        head = PyBytes_FromStringAndSize("\xB7\x10", 2);
        first_crc = head == NULL ? NULL : PyObject_CallOneArg(crc32_of, head);
        dict_name = PyUnicode_InternFromString("__dict__");
        fields_set_name = PyUnicode_InternFromString("__pydantic_fields_set__");
        extra_name = PyUnicode_InternFromString("__pydantic_extra__");
        private_name = PyUnicode_InternFromString("__pydantic_private__");
    }
    Py_XDECREF(zlib);
    Py_XDECREF(head);
    return first_crc == NULL || private_name == NULL ? -1 : 0;
}

static PyMethodDef methods[] = {
    {"split", (PyCFunction)(void *)split, METH_FASTCALL, PyDoc_STR("See frame.unpack.")},
    {"build", (PyCFunction)(void *)build, METH_FASTCALL,
     PyDoc_STR("See langchain_types.portable_build.")},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "threadkeep._core.codec._reading", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__reading(void)
{
    return PyModuleDef_Init(&definition);
}
