/* Whether things are the very same objects: the comparisons whose cost is of every message
 * of a thread at every step (see identity.py, which has the same in Python).
 *
 * Only such comparisons live here. Invariants: while one compares, no Python code runs, so
 * that nothing can change meanwhile; no reference count of what is compared is touched; every
 * answer is that of identity.py.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The objects that are expected next. */
typedef struct {
    PyObject **next;
    PyObject **end;
} Expected;

static Expected
all_of(PyObject *list)
{
    PyObject **items = PySequence_Fast_ITEMS(list);
    return (Expected){items, items + PyList_GET_SIZE(list)};
}

/* A `visitproc`: 0 to go on, 1 where another object is met than expected. */
static int
meet(PyObject *object, void *argument)
{
    Expected *expected = argument;
    if (expected->next == expected->end || *expected->next != object) {
        return 1;
    }
    expected->next++;
    return 0;
}

/* Whether there is nothing to ask for: in a message most lists and dicts are empty. */
static int
is_empty(PyObject *container)
{
    return (PyDict_CheckExact(container) && PyDict_GET_SIZE(container) == 0) ||
           (PyList_CheckExact(container) && PyList_GET_SIZE(container) == 0);
}

/* `PyObject_IS_GC`, which is a call that is not inlined. */
static int
is_gc(PyObject *container)
{
    PyTypeObject *type = Py_TYPE(container);
    return PyType_IS_GC(type) && (type->tp_is_gc == NULL || type->tp_is_gc(container));
}

/* As `gc.get_referents(*containers)` would list them, which asks in the same way. */
static int
same_referents(PyObject *containers, PyObject *referents)
{
    Expected expected = all_of(referents);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(containers); i++) {
        PyObject *container = PyTuple_GET_ITEM(containers, i);
        traverseproc traverse = Py_TYPE(container)->tp_traverse;
        if (is_empty(container) || traverse == NULL || !is_gc(container)) {
            continue;
        }
        if (traverse(container, meet, &expected) != 0) {
            return 0;
        }
    }
    return expected.next == expected.end;
}

static int
same_keys(PyObject *dicts, PyObject *keys)
{
    Expected expected = all_of(keys);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(dicts); i++) {
        PyObject *dict = PyList_GET_ITEM(dicts, i), *key;
        Py_ssize_t position = 0;
        if (!PyDict_Check(dict)) {
            return 0;
        }
        while (PyDict_Next(dict, &position, &key, NULL)) {
            if (meet(key, &expected) != 0) {
                return 0;
            }
        }
    }
    return expected.next == expected.end;
}

static int
same_sizes(PyObject *sets, PyObject *sizes)
{
    if (PyList_GET_SIZE(sets) != PyList_GET_SIZE(sizes)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(sets); i++) {
        PyObject *set = PyList_GET_ITEM(sets, i);
        if (!PyAnySet_Check(set) ||
            PySet_GET_SIZE(set) != PyLong_AsSsize_t(PyList_GET_ITEM(sizes, i))) {
            return 0;
        }
    }
    return 1;
}

static PyObject *
intact(PyObject *module, PyObject *arguments)
{
    PyObject *containers, *referents, *dicts, *keys, *sets, *sizes;
    if (!PyArg_ParseTuple(arguments, "O!O!O!O!O!O!:intact", &PyTuple_Type, &containers,
                          &PyList_Type, &referents, &PyList_Type, &dicts, &PyList_Type, &keys,
                          &PyList_Type, &sets, &PyList_Type, &sizes)) {
        return NULL;
    }
    int same = same_referents(containers, referents) && same_keys(dicts, keys) &&
               same_sizes(sets, sizes);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(same);
}

static Py_ssize_t
common(PyObject *one, PyObject *other, Py_ssize_t most)
{
    PyObject **a = PySequence_Fast_ITEMS(one), **b = PySequence_Fast_ITEMS(other);
    Py_ssize_t i = 0;
    while (i < most && a[i] == b[i]) {
        i++;
    }
    return i;
}

static PyObject *
same_front(PyObject *module, PyObject *arguments)
{
    PyObject *one, *other;
    if (!PyArg_ParseTuple(arguments, "O!O!:same_front", &PyList_Type, &one, &PyList_Type, &other)) {
        return NULL;
    }
    Py_ssize_t most = Py_MIN(PyList_GET_SIZE(one), PyList_GET_SIZE(other));
    return PyLong_FromSsize_t(common(one, other, most));
}

static PyObject *
behind(PyObject *module, PyObject *arguments)
{
    PyObject *old, *now;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "O!nO!:behind", &PyList_Type, &old, &size, &PyList_Type,
                          &now)) {
        return NULL;
    }
    if (size < 0 || size > PyList_GET_SIZE(old) || size > PyList_GET_SIZE(now) ||
        common(old, now, size) != size) {
        Py_RETURN_NONE;
    }
    return PyList_GetSlice(now, size, PyList_GET_SIZE(now));
}

static PyMethodDef methods[] = {
    {"intact", intact, METH_VARARGS, PyDoc_STR("See identity.portable_intact.")},
    {"same_front", same_front, METH_VARARGS, PyDoc_STR("See identity.portable_same_front.")},
    {"behind", behind, METH_VARARGS, PyDoc_STR("See identity.portable_behind.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "threadkeep.engine._identity", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__identity(void)
{
    return PyModuleDef_Init(&definition);
}
