/* Whether what is under watch is as it was: the one comparison whose cost is of every
 * message of a thread at every step (see shadow.py, and intact.py for the same in Python).
 *
 * Only this comparison lives here. Invariants: no Python code runs and no reference count
 * is touched, so that nothing can change meanwhile; every answer is that of intact.py.
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

/* As `gc.get_referents(*containers)` would list them, which asks in the same way. */
static int
same_referents(PyObject *containers, PyObject *referents)
{
    Expected expected = all_of(referents);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(containers); i++) {
        PyObject *container = PyTuple_GET_ITEM(containers, i);
        traverseproc traverse = Py_TYPE(container)->tp_traverse;
        if (traverse == NULL || !PyObject_IS_GC(container)) {
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

PyDoc_STRVAR(intact_doc, "See threadkeep.engine.intact.portable_intact.");

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

static PyMethodDef methods[] = {
    {"intact", intact, METH_VARARGS, intact_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "threadkeep.engine._intact", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__intact(void)
{
    return PyModuleDef_Init(&definition);
}
