/* A constructor of NamedTuples (see records.py).
 *
 * NamedTuple's own `__new__` is a Python function, and a class with one is called in a roundabout
 * way. Here the tuple is made from the arguments at once. Whatever is unusual (an unknown or missing
 * argument) is left to `__new__`, so that results and errors are those of the class.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *form_name; /* of an attribute of the class: (fields, defaults) */

/* Find a field by its name, from `at` on; -1 if there is none. Names of arguments and of fields are
 * interned: another object, or none, is unusual. */
static Py_ssize_t
find(PyObject *fields, PyObject *name, Py_ssize_t at)
{
    for (; at < PyTuple_GET_SIZE(fields); at++) {
        if (PyTuple_GET_ITEM(fields, at) == name) {
            return at;
        }
    }
    return -1;
}

/* Put the arguments and defaults into the new tuple; -1, without an exception, if one is missing. */
static int
fill(PyObject *made, PyObject *form, PyObject *const *args, Py_ssize_t given, PyObject *names)
{
    PyObject *fields = PyTuple_GET_ITEM(form, 0), *defaults = PyTuple_GET_ITEM(form, 1);
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < given; i++) {
        PyTuple_SET_ITEM(made, i, Py_NewRef(args[i]));
    }
    for (Py_ssize_t i = 0; i < named; i++) {
        Py_ssize_t at = find(fields, PyTuple_GET_ITEM(names, i), given);
        if (at < 0) {
            return -1;
        }
        PyTuple_SET_ITEM(made, at, Py_NewRef(args[given + i]));
    }
    for (Py_ssize_t i = given; i < PyTuple_GET_SIZE(fields); i++) {
        if (PyTuple_GET_ITEM(made, i) == NULL) {
            PyObject *value = PyTuple_GET_ITEM(defaults, i);
            if (value == Py_Ellipsis) {
                return -1;
            }
            PyTuple_SET_ITEM(made, i, Py_NewRef(value));
        }
    }
    return 0;
}

static PyObject *
by_new(PyTypeObject *cls, PyObject *const *args, Py_ssize_t given, PyObject *names)
{
    PyObject *made = NULL, *keywords = NULL, *positional = PyTuple_New(given);
    if (positional == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < given; i++) {
        PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    }
    int failed = names != NULL && (keywords = PyDict_New()) == NULL;
    for (Py_ssize_t i = 0; !failed && names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        failed = PyDict_SetItem(keywords, PyTuple_GET_ITEM(names, i), args[given + i]) < 0;
    }
    if (!failed) {
        made = cls->tp_new(cls, positional, keywords);
    }
    Py_DECREF(positional);
    Py_XDECREF(keywords);
    return made;
}

static PyObject *
make(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *names)
{
    PyTypeObject *cls = (PyTypeObject *)type;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    PyObject *form = PyDict_GetItemWithError(cls->tp_dict, form_name);
    if (form == NULL && PyErr_Occurred()) {
        return NULL;
    }
    if (form != NULL && PyTuple_CheckExact(form) &&
        given <= PyTuple_GET_SIZE(PyTuple_GET_ITEM(form, 0))) {
        PyObject *made = cls->tp_alloc(cls, PyTuple_GET_SIZE(PyTuple_GET_ITEM(form, 0)));
        if (made == NULL || fill(made, form, args, given, names) == 0) {
            return made;
        }
        Py_DECREF(made);
    }
    return by_new(cls, args, given, names);
}

static PyObject *
construct(PyObject *module, PyObject *arguments)
{
    PyTypeObject *cls;
    PyObject *fields, *defaults;
    if (!PyArg_ParseTuple(arguments, "O!O!O!:construct", &PyType_Type, &cls, &PyTuple_Type, &fields,
                          &PyTuple_Type, &defaults)) {
        return NULL;
    }
    if (!PyType_IsSubtype(cls, &PyTuple_Type) || !PyType_HasFeature(cls, Py_TPFLAGS_HEAPTYPE) ||
        cls->tp_init != PyTuple_Type.tp_init ||
        PyTuple_GET_SIZE(fields) != PyTuple_GET_SIZE(defaults)) {
        PyErr_SetString(PyExc_TypeError, "construct() takes a NamedTuple, its fields and defaults");
        return NULL;
    }
    if (form_name == NULL && (form_name = PyUnicode_InternFromString("_form")) == NULL) {
        return NULL;
    }
    PyObject *form = PyTuple_Pack(2, fields, defaults);
    if (form == NULL || PyObject_SetAttr((PyObject *)cls, form_name, form) < 0) {
        Py_XDECREF(form);
        return NULL;
    }
    Py_DECREF(form);
    cls->tp_vectorcall = make; /* (subclasses don't inherit it) */
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"construct", construct, METH_VARARGS, PyDoc_STR("See records.quick.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "threadkeep._core.engine._records", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__records(void)
{
    return PyModuleDef_Init(&definition);
}
