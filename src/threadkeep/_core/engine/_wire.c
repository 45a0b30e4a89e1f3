/* A manifest as a difference to its keyframe, and a look at a checkpoint's names and versions
 * (refs.py and validation.py have the same in Python).
 *
 * Invariants: no code of the program runs (except the comparison of a dict's unusual keys): only
 * plain text, numbers and None are compared, and other types are left to the Python version. All
 * answers are those of the Python version.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define PART PyTuple_GET_ITEM

/* The parts needed to write a manifest; all borrowed. Below, -1 or NULL without an exception means
 * that something is unusual. */
typedef struct {
    PyObject *channels, *nodes;  /* the numbers of the keyframe's names */
    PyObject *to_wire, *newest;
} Form;

/* Append a new reference, and release it. */
static int
push(PyObject *list, PyObject *item)
{
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* Look up a name in a dict: borrowed, or NULL if the dict does not have it. */
static int
look(PyObject *dict, PyObject *name, PyObject **found)
{
    *found = PyUnicode_CheckExact(name) ? PyDict_GetItemWithError(dict, name) : NULL;
    return *found == NULL && (PyErr_Occurred() || !PyUnicode_CheckExact(name)) ? -1 : 0;
}

/* Append the number of a name, or the name. */
static int
push_name(PyObject *wire, PyObject *numbers, PyObject *name)
{
    PyObject *number;
    int failed = look(numbers, name, &number);
    return failed ? failed : PyList_Append(wire, number == NULL ? name : number);
}

/* Count the names of a dict that are not in the other; append their values to `wire`. */
static int
count_gone(PyObject *dict, PyObject *other, PyObject *wire)
{
    PyObject *name, *number, *found;
    Py_ssize_t position = 0;
    int count = 0;
    while (PyDict_Next(dict, &position, &name, &number)) {
        if (look(other, name, &found) < 0 ||
            (found == NULL && wire != NULL && PyList_Append(wire, number) < 0)) {
            return -1;
        }
        count += found == NULL;
    }
    return count;
}

/* -- versions ------------------------------------------------------------------------- */

static int
is_same_version(PyObject *a, PyObject *b)
{
    if (a == Py_None || b == Py_None) {
        return a == b;
    }
    int plain = (PyLong_CheckExact(a) && PyLong_CheckExact(b)) ||
                (PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b));
    return plain ? PyObject_RichCompareBool(a, b, Py_EQ) : -1;
}

/* Append a name, and its version: as the distance to the newest, if it is a number. */
static int
push_version(Form *form, PyObject *wire, PyObject *name, PyObject *version)
{
    if (push_name(wire, form->channels, name) < 0) {
        return -1;
    }
    if (version == Py_None || PyUnicode_CheckExact(version)) {
        return PyList_Append(wire, version);
    }
    return PyLong_CheckExact(version) ? push(wire, PyNumber_Subtract(form->newest, version)) : -1;
}

/* Find the greatest number of all entries; zero if an entry is negative. */
static int
find_newest(Form *form, PyObject *entries)
{
    PyObject *entry, *zero = form->newest;
    Py_ssize_t position = 0;
    int negative = 0;
    while (PyDict_Next(entries, &position, NULL, &entry)) {
        if (!PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) != 3) {
            return -1;
        }
        PyObject *version = PART(entry, 0);
        if (PyLong_CheckExact(version)) {
            negative |= PyObject_RichCompareBool(version, zero, Py_LT);
            if (PyObject_RichCompareBool(version, form->newest, Py_GT)) {
                form->newest = version;
            }
        }
    }
    form->newest = negative ? zero : form->newest;
    return 0;
}

/* -- channels ------------------------------------------------------------------------- */

static int
is_same_entry(PyObject *entry, PyObject *known)
{
    int same = PyTuple_Check(known) && PyTuple_GET_SIZE(known) == 3
                   ? is_same_version(PART(entry, 0), PART(known, 0)) : -1;
    for (Py_ssize_t i = 1; i < 3 && same == 1; i++) {
        same = PyObject_RichCompareBool(PART(entry, i), PART(known, i), Py_EQ);
    }
    return same;
}

/* Count the spans of a reference, its last part; -1 if it has none. */
static Py_ssize_t
count_spans(PyObject *ref)
{
    Py_ssize_t size = PyTuple_Check(ref) ? PyTuple_GET_SIZE(ref) : 0;
    PyObject *spans = size == 2 || size == 3 ? PART(ref, size - 1) : Py_None;
    return PyTuple_CheckExact(spans) ? PyTuple_GET_SIZE(spans) : -1;
}

/* The reference as `refs.to_wire` writes it (which also does the rare cases): a new reference. */
static PyObject *
ref_of(Form *form, PyObject *ref, PyObject *old)
{
    Py_ssize_t spans = count_spans(ref), parts = spans < 0 ? 0 : PyTuple_GET_SIZE(ref);
    PyObject *first = parts ? PART(ref, 0) : ref;
    if (ref == Py_None || (parts == 2 && spans == 0 && PyBytes_CheckExact(first))) {
        return Py_NewRef(first);
    }
    if (parts == 3 && spans == 0) {  /* a `Cell` */
        return Py_BuildValue("[iOO]", 1, first, PART(ref, 1));
    }
    if (parts == 2 && spans == 1 && PyLong_CheckExact(first) && count_spans(old) < 2) {
        PyObject *log, *start, *stop;  /* a `Run` */
        if (!PyArg_ParseTuple(PART(PART(ref, 1), 0), "OOO", &log, &start, &stop)) {
            return NULL;
        }
        return Py_BuildValue("[OOON]", first, log, start, PyNumber_Subtract(stop, start));
    }
    return PyObject_CallFunctionObjArgs(form->to_wire, ref, old, NULL);
}

static int
push_entries(Form *form, PyObject *wire, PyObject *entries, PyObject *before)
{
    PyObject *name, *entry, *known;
    Py_ssize_t position = 0;
    while (PyDict_Next(entries, &position, &name, &entry)) {
        if (look(before, name, &known) < 0) {
            return -1;
        }
        int same = known == NULL ? 0 : entry == known ? 1 : is_same_entry(entry, known);
        if (same == 1) {
            continue;
        }
        if (same < 0 || !PyBool_Check(PART(entry, 2)) ||
            push_version(form, wire, name, PART(entry, 0)) < 0 ||
            push(wire, PART(entry, 2) == Py_True
                     ? Py_NewRef(Py_False)
                     : ref_of(form, PART(entry, 1), known ? PART(known, 1) : Py_None)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* -- versions seen by nodes ----------------------------------------------------------- */

/* The changed versions, or all versions if some were removed: a new reference. */
static PyObject *
versions_of(Form *form, PyObject *versions, PyObject *known)
{
    PyObject *name, *version, *old = NULL, *wire = PyList_New(0);
    Py_ssize_t position = 0;
    int gone = known == NULL ? 1 : count_gone(known, versions, NULL);
    int failed = wire == NULL || gone < 0 || PyList_Append(wire, gone ? Py_True : Py_False) < 0;
    while (!failed && PyDict_Next(versions, &position, &name, &version)) {
        failed = !gone && look(known, name, &old) < 0;
        int same = failed || old == NULL ? 0 : is_same_version(version, old);
        failed = failed || same < 0 || (!same && push_version(form, wire, name, version) < 0);
    }
    if (failed) {
        Py_CLEAR(wire);
    }
    return wire;
}

static int
push_seen(Form *form, PyObject *wire, PyObject *seen, PyObject *before)
{
    PyObject *node, *versions, *known;
    Py_ssize_t position = 0;
    while (PyDict_Next(seen, &position, &node, &versions)) {
        if (look(before, node, &known) < 0) {
            return -1;
        }
        if (known == versions) {
            continue;
        }
        if (!PyDict_CheckExact(versions) || (known != NULL && !PyDict_CheckExact(known))) {
            return -1;
        }
        PyObject *told = versions_of(form, versions, known);
        int same = told != NULL && PyList_GET_SIZE(told) == 1 && PyList_GET_ITEM(told, 0) == Py_False;
        int failed = told == NULL || (!same && (push_name(wire, form->nodes, node) < 0 ||
                                                PyList_Append(wire, told) < 0));
        Py_XDECREF(told);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

/* -- the manifest --------------------------------------------------------------------- */

/* The dicts: channels, versions seen by nodes, both of the keyframe, the numbers of both. */
static int
fill(Form *form, PyObject *wire, PyObject **dicts)
{
    PyObject *lists[4];
    for (Py_ssize_t i = 0; i < 4; i++) {
        lists[i] = PyList_New(0);
        if (push(wire, lists[i]) < 0) {
            return -1;
        }
    }
    form->channels = dicts[4];
    form->nodes = dicts[5];
    if (find_newest(form, dicts[0]) < 0 || count_gone(form->channels, dicts[0], lists[0]) < 0 ||
        push_entries(form, lists[1], dicts[0], dicts[2]) < 0 ||
        count_gone(form->nodes, dicts[1], lists[2]) < 0 ||
        push_seen(form, lists[3], dicts[1], dicts[3]) < 0) {
        return -1;
    }
    return PyList_Append(wire, form->newest);
}

static PyObject *
difference(PyObject *module, PyObject *arguments)
{
    PyObject *dicts[6];
    Form form;
    if (!PyArg_ParseTuple(arguments, "OOOOOOO:difference", &dicts[0], &dicts[1], &dicts[2],
                          &dicts[3], &dicts[4], &dicts[5], &form.to_wire)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < 6; i++) {
        if (!PyDict_CheckExact(dicts[i])) {
            Py_RETURN_NONE;
        }
    }
    PyObject *wire = PyList_New(0), *zero = form.newest = PyLong_FromLong(0);
    if (wire != NULL && fill(&form, wire, dicts) < 0) {
        Py_CLEAR(wire);
    }
    Py_XDECREF(zero);
    return wire != NULL || PyErr_Occurred() ? wire : Py_NewRef(Py_None);
}

/* -- arguments of a caller ------------------------------------------------------------ */

static int
is_ascii(PyObject *object)
{
    return PyUnicode_Check(object) && PyUnicode_IS_ASCII(object);
}

/* True if it is a dict of usual names and, for a dict of versions, of usual versions. */
static int
has_usual(PyObject *dict, int versions)
{
    PyObject *name, *version;
    Py_ssize_t position = 0;
    int usual = PyDict_CheckExact(dict), overflow = 0;
    while (usual && PyDict_Next(dict, &position, &name, &version)) {
        usual = is_ascii(name);
        if (versions && PyLong_CheckExact(version)) {
            PyLong_AsLongLongAndOverflow(version, &overflow);
            usual = usual && !overflow;
        }
        else if (versions) {
            usual = usual && is_ascii(version);
        }
    }
    return usual;
}

static PyObject *
is_usual(PyObject *module, PyObject *arguments)
{
    PyObject *values, *versions, *seen, *each;
    Py_ssize_t position = 0;
    if (!PyArg_ParseTuple(arguments, "OOO:is_usual", &values, &versions, &seen)) {
        return NULL;
    }
    int usual = has_usual(values, 0) && has_usual(versions, 1) && has_usual(seen, 0);
    while (usual && PyDict_Next(seen, &position, NULL, &each)) {
        usual = has_usual(each, 1);
    }
    return PyBool_FromLong(usual);
}

static PyMethodDef methods[] = {
    {"difference", difference, METH_VARARGS, PyDoc_STR("See manifest.portable_difference.")},
    {"is_usual", is_usual, METH_VARARGS, PyDoc_STR("See validation.portable_is_usual.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "threadkeep._core.engine._wire", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__wire(void)
{
    return PyModuleDef_Init(&definition);
}
