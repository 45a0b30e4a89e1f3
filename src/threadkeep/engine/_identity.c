/* Identity of objects, and copies of values as they are at one instant (identity.py and
 * capture.py have the same in Python).
 *
 * Invariants: while a function here looks at objects, no Python code runs (but for the hash of a
 * dict's unusual keys) and the collector is off, so that no other thread can change them
 * meanwhile; every answer is that of the Python.
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

static int
same_rows(PyObject *containers, PyObject *referents, PyObject *dicts, PyObject *keys,
          PyObject *sets, PyObject *sizes)
{
    return same_referents(containers, referents) && same_keys(dicts, keys) &&
           same_sizes(sets, sizes);
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
    int same = same_rows(containers, referents, dicts, keys, sets, sizes);
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

/* Whether a list, tuple or dict has the first `size` of `items` and no more, in this order. */
static int
consists_of(PyObject *value, PyObject *keys, PyObject *items, Py_ssize_t size)
{
    PyObject **expected = PySequence_Fast_ITEMS(items), **names, *key, *item;
    Py_ssize_t i = 0, position = 0;
    if (size > PyList_GET_SIZE(items)) {
        return 0;
    }
    if (!PyDict_Check(value)) {
        if ((!PyList_Check(value) && !PyTuple_Check(value)) ||
            PySequence_Fast_GET_SIZE(value) != size) {
            return 0;
        }
        while (i < size && PySequence_Fast_GET_ITEM(value, i) == expected[i]) {
            i++;
        }
        return i == size;
    }
    if (!PyList_Check(keys) || PyList_GET_SIZE(keys) != size || PyDict_GET_SIZE(value) != size) {
        return 0;
    }
    names = PySequence_Fast_ITEMS(keys);
    while (PyDict_Next(value, &position, &key, &item)) {
        if (i == size || key != names[i] || item != expected[i]) {
            return 0;
        }
        i++;
    }
    return i == size;
}

static PyObject *
unchanged(PyObject *module, PyObject *arguments)
{
    PyObject *value, *keys, *items, *chunks;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "OOO!nO!:unchanged", &value, &keys, &PyList_Type, &items,
                          &size, &PyTuple_Type, &chunks)) {
        return NULL;
    }
    if (value != Py_None && !consists_of(value, keys, items, size)) {
        Py_RETURN_FALSE;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(chunks); i++) {
        PyObject *rows = PyTuple_GET_ITEM(PyTuple_GET_ITEM(chunks, i), 0);
        PyObject **row = PySequence_Fast_ITEMS(rows);
        int same = same_rows(row[0], row[1], row[2], row[3], row[4], row[5]);
        if (PyErr_Occurred()) {
            return NULL;
        }
        if (!same) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
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

/* Objects that were met, by address: open addressing, NULL where there is none. */
typedef struct {
    PyObject **places;
    size_t mask;
} Met;

/* Whether an object is met for the first time. */
static int
is_new(Met *met, PyObject *object)
{
    size_t at = ((size_t)object >> 4) * (size_t)0x9E3779B97F4A7C15ULL >> 16;
    for (;; at++) {
        PyObject **place = &met->places[at & met->mask];
        if (*place == NULL) {
            *place = object;
            return 1;
        }
        if (*place == object) {
            return 0;
        }
    }
}

/* Whether it can change by itself, not only by what it refers to. */
static int
can_change(PyObject *object)
{
    return !PyTuple_Check(object) && !PyFrozenSet_CheckExact(object);
}

static PyObject *
containers_of(PyObject *chunks, Py_ssize_t number)
{
    return PyTuple_GET_ITEM(PyTuple_GET_ITEM(PyTuple_GET_ITEM(chunks, number), 0), 0);
}

static PyObject *
apart(PyObject *module, PyObject *arguments)
{
    PyObject *groups, *result = NULL;
    Py_ssize_t count = 0;
    if (!PyArg_ParseTuple(arguments, "O!:apart", &PyList_Type, &groups)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(groups); i++) {
        PyObject *chunks = PyList_GET_ITEM(groups, i);
        for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(chunks); j++) {
            count += PyTuple_GET_SIZE(containers_of(chunks, j));
        }
    }
    Met met = {NULL, 63};
    while (met.mask < 2 * (size_t)count) {
        met.mask = 2 * met.mask + 1;
    }
    met.places = PyMem_Calloc(met.mask + 1, sizeof(PyObject *));
    if (met.places == NULL) {
        return PyErr_NoMemory();
    }
    result = PyList_New(0);
    for (Py_ssize_t i = 0; result != NULL && i < PyList_GET_SIZE(groups); i++) {
        PyObject *chunks = PyList_GET_ITEM(groups, i);
        int all_new = 1;
        for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(chunks); j++) {
            PyObject *containers = containers_of(chunks, j);
            for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(containers); k++) {
                PyObject *object = PyTuple_GET_ITEM(containers, k);
                if (can_change(object) && !is_new(&met, object)) {
                    all_new = 0;
                }
            }
        }
        if (PyList_Append(result, all_new ? Py_True : Py_False) < 0) {
            Py_CLEAR(result);
        }
    }
    PyMem_Free(met.places);
    return result;
}

/* -- capturing ------------------------------------------------------------------------ */

/* What an instance of a class is to a shadow; as in capture.py. */
enum { LEAF, CONTAINER, STATE, SETTLED, OPAQUE, DERIVED };

/* A container that was met. The original is borrowed: what refers to it cannot change yet. */
typedef struct {
    PyObject *original;
    PyObject *copy;      /* owned; NULL where the original itself will do */
    PyObject *slots;     /* the descriptors of an instance's class; NULL if it is none */
    PyObject *attributes;  /* the `__dict__` of an instance, owned */
    Py_ssize_t element;  /* the element that it was met under last */
    int kind;
    int is_own;          /* an instance's `__dict__`, or the set of fields it was given */
} Node;

typedef struct {
    PyObject *kinds, *layouts, *unknown;  /* `unknown`: a class that `kinds` lacks */
    Node *nodes;
    Py_ssize_t count, room, element;
    Py_ssize_t *queue;  /* the nodes met under the element, by number; -1 - number: once more */
    Py_ssize_t queued, queue_room;
    Py_ssize_t *places;  /* open addressing: an object's node, -1 where there is none */
    size_t mask;
    PyObject *found;  /* the row of references that is being written, or NULL */
    PyObject *containers, *referents, *dicts, *keys, *sets;
    int copying;
} Walk;

static Py_ssize_t *
place_of(Walk *walk, PyObject *object)
{
    size_t at = ((size_t)object >> 4) * (size_t)0x9E3779B97F4A7C15ULL >> 16;
    for (;; at++) {
        Py_ssize_t *place = &walk->places[at & walk->mask];
        if (*place < 0 || walk->nodes[*place].original == object) {
            return place;
        }
    }
}

static int
make_room(Walk *walk)
{
    if (walk->count == walk->room) {
        Py_ssize_t room = walk->room ? 4 * walk->room : 64;
        Node *nodes = PyMem_Realloc(walk->nodes, room * sizeof(Node));
        Py_ssize_t *places = PyMem_Malloc(4 * room * sizeof(Py_ssize_t));
        if (nodes != NULL) {
            walk->nodes = nodes;
        }
        if (nodes == NULL || places == NULL) {
            PyMem_Free(places);
            PyErr_NoMemory();
            return -1;
        }
        PyMem_Free(walk->places);
        walk->places = places;
        walk->room = room;
        walk->mask = 4 * room - 1;
        memset(places, -1, 4 * room * sizeof(Py_ssize_t));
        for (Py_ssize_t i = 0; i < walk->count; i++) {
            *place_of(walk, walk->nodes[i].original) = i;
        }
    }
    if (walk->queued == walk->queue_room) {
        Py_ssize_t room = walk->queue_room ? 4 * walk->queue_room : 64;
        Py_ssize_t *queue = PyMem_Realloc(walk->queue, room * sizeof(Py_ssize_t));
        if (queue == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        walk->queue = queue;
        walk->queue_room = room;
    }
    return 0;
}

/* The kind of an object; -1 where its class is not known (`unknown`), or for an error. */
static int
kind_of(Walk *walk, PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBool_Type ||
        type == &PyFloat_Type || type == Py_TYPE(Py_None)) {
        return LEAF;
    }
    PyObject *kind = PyDict_GetItemWithError(walk->kinds, (PyObject *)type);
    if (kind == NULL) {
        if (!PyErr_Occurred()) {
            walk->unknown = (PyObject *)type;
        }
        return -1;
    }
    return (int)PyLong_AsLong(kind);
}

/* Queue an object under the element that is walked if it is no leaf, and each time that it is met
 * again there, as what can change. */
static int
reach(Walk *walk, PyObject *object)
{
    int kind = kind_of(walk, object);
    if (kind <= LEAF) {
        return kind;
    }
    if (make_room(walk) < 0) {
        return -1;
    }
    Py_ssize_t *place = place_of(walk, object);
    if (*place < 0) {
        *place = walk->count++;
        walk->nodes[*place] = (Node){object, NULL, NULL, NULL, -1, kind, 0};
    }
    Node *node = &walk->nodes[*place];
    if (node->element != walk->element) {
        node->element = walk->element;
        walk->queue[walk->queued++] = *place;
    }
    else if (!node->is_own && kind != OPAQUE && can_change(object)) {
        walk->queue[walk->queued++] = -1 - *place;
    }
    return 0;
}

/* A `visitproc`: note what is referred to, and queue it. */
static int
note(PyObject *object, void *argument)
{
    Walk *walk = argument;
    if (walk->found != NULL && PyList_Append(walk->found, object) < 0) {
        return -1;
    }
    return reach(walk, object);
}

/* A `visitproc`: note what is referred to. */
static int
note_only(PyObject *object, void *argument)
{
    return PyList_Append(((Walk *)argument)->referents, object);
}

/* Note an object that was met under the element before; of an instance, its `__dict__`. */
static int
note_again(Walk *walk, Node *node)
{
    PyObject *object = node->attributes != NULL ? node->attributes : node->original;
    traverseproc traverse = Py_TYPE(object)->tp_traverse;
    if (PyList_Append(walk->containers, object) < 0) {
        return -1;
    }
    return traverse != NULL && is_gc(object) ? traverse(object, note_only, walk) : 0;
}

static int
note_keys(Walk *walk, PyObject *dict)
{
    PyObject *key;
    Py_ssize_t position = 0;
    if (PyList_Append(walk->dicts, dict) < 0) {
        return -1;
    }
    while (PyDict_Next(dict, &position, &key, NULL)) {
        if (PyList_Append(walk->keys, key) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Of an instance: its `__dict__`, and the set of fields that a model was given. */
static int
note_state(Walk *walk, Py_ssize_t number)
{
    PyObject *object = walk->nodes[number].original, *attributes;
    PyObject *layout = PyDict_GetItemWithError(walk->layouts, (PyObject *)Py_TYPE(object));
    if (layout == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    walk->nodes[number].slots = PyTuple_GET_ITEM(layout, 1);
    if (PyTuple_GET_ITEM(layout, 0) == Py_True && walk->nodes[number].attributes == NULL) {
        attributes = walk->nodes[number].attributes = PyObject_GenericGetDict(object, NULL);
        if (attributes == NULL) {
            return -1;
        }
    }
    attributes = walk->nodes[number].attributes;
    if (attributes != NULL) {
        if (reach(walk, attributes) < 0) {
            return -1;
        }
        walk->nodes[*place_of(walk, attributes)].is_own = 1;
    }
    if (walk->nodes[number].kind == SETTLED) {
        PyObject *descriptor = PyTuple_GET_ITEM(layout, 2);
        PyObject *given = Py_TYPE(descriptor)->tp_descr_get(descriptor, object,
                                                            (PyObject *)Py_TYPE(object));
        if (given == NULL || !PyAnySet_CheckExact(given)) {
            PyErr_Clear();  /* it was put together by hand: the instance itself is watched */
            Py_XDECREF(given);
            walk->nodes[number].kind = STATE;
            return 0;
        }
        if (PyList_Append(walk->sets, given) < 0) {
            Py_DECREF(given);
            return -1;
        }
        Py_ssize_t queued = walk->queued;
        int reached = reach(walk, given);
        Py_DECREF(given);
        if (reached < 0) {
            return -1;
        }
        walk->nodes[*place_of(walk, given)].is_own = 1;
        walk->queued = queued;  /* (watched by its size alone) */
    }
    return 0;
}

/* Whether `layouts` may have the class: it has attributes of its own. */
static int
may_have_layout(int kind, PyObject *object)
{
    return kind > CONTAINER || PyODict_CheckExact(object) ||
           (PyTuple_Check(object) && !PyTuple_CheckExact(object));
}

/* Put the containers under an element under watch: 1, or 0 where one cannot be watched. */
static int
walk_below(Walk *walk, PyObject *element)
{
    int watched = 1;
    walk->element++;
    walk->queued = 0;
    if (reach(walk, element) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < walk->queued; i++) {
        Py_ssize_t number = walk->queue[i];
        if (number < 0) {
            if (note_again(walk, &walk->nodes[-1 - number]) < 0) {
                return -1;
            }
            continue;
        }
        PyObject *object = walk->nodes[number].original;
        int kind = walk->nodes[number].kind;
        if (kind == OPAQUE) {
            watched = 0;
            continue;
        }
        if (may_have_layout(kind, object) && note_state(walk, number) < 0) {
            return -1;
        }
        kind = walk->nodes[number].kind;
        if (kind == DERIVED) {
            watched = 0;  /* it may keep what no reference shows, but has parts to copy */
        }
        if (kind != CONTAINER && walk->nodes[number].slots == NULL) {
            walk->nodes[number].kind = OPAQUE;  /* what is known of classes was just cleared */
            watched = 0;
            continue;
        }
        if (kind != STATE && kind != SETTLED && PyDict_Check(object) && PyDict_GET_SIZE(object) &&
            !walk->nodes[number].is_own && note_keys(walk, object) < 0) {
            return -1;
        }
        walk->found = kind == SETTLED ? NULL : walk->referents;
        if (walk->found != NULL && PyList_Append(walk->containers, object) < 0) {
            return -1;
        }
        traverseproc traverse = Py_TYPE(object)->tp_traverse;
        if (traverse != NULL && is_gc(object) && traverse(object, note, walk) != 0) {
            return -1;
        }
    }
    return watched;
}

/* A new instance of a class derived from dict, list or set, with its items. */
static PyObject *
copy_of_derived(PyObject *original)
{
    PyTypeObject *type = Py_TYPE(original), *base;
    PyObject *key, *value, *nothing = PyTuple_New(0), *copy = NULL, *members = NULL;
    Py_ssize_t position = 0;
    int failed = nothing == NULL;
    base = PyDict_Check(original) ? &PyDict_Type : PyList_Check(original) ? &PyList_Type : &PySet_Type;
    copy = failed ? NULL : base->tp_new(type, nothing, NULL);
    Py_XDECREF(nothing);
    if (copy == NULL) {
        return NULL;
    }
    if (base == &PyDict_Type) {
        while (!failed && PyDict_Next(original, &position, &key, &value)) {
            failed = PyDict_SetItem(copy, key, value) < 0;
        }
    }
    else if (base == &PyList_Type) {
        for (; !failed && position < PyList_GET_SIZE(original); position++) {
            failed = PyList_Append(copy, PyList_GET_ITEM(original, position)) < 0;
        }
    }
    else {
        members = PySet_Type.tp_iter(original);
        failed = members == NULL;
        while (!failed && (key = PyIter_Next(members)) != NULL) {
            failed = PySet_Add(copy, key) < 0;
            Py_DECREF(key);
        }
        Py_XDECREF(members);
    }
    if (failed || PyErr_Occurred()) {
        Py_CLEAR(copy);
    }
    return copy;
}

/* A new instance of the class, with nothing in it but what the slots hold. */
static PyObject *
copy_of_state(Node *node)
{
    PyTypeObject *type = Py_TYPE(node->original);
    PyObject *copy = node->kind == DERIVED ? copy_of_derived(node->original)
                                           : type->tp_alloc(type, 0);
    for (Py_ssize_t i = 0; copy != NULL && i < PyTuple_GET_SIZE(node->slots); i++) {
        PyObject *slot = PyTuple_GET_ITEM(node->slots, i);
        PyObject *value = Py_TYPE(slot)->tp_descr_get(slot, node->original, (PyObject *)type);
        if (value == NULL) {
            PyErr_Clear();  /* it is not set */
        }
        else if (Py_TYPE(slot)->tp_descr_set(slot, copy, value) < 0) {
            Py_CLEAR(copy);
        }
        Py_XDECREF(value);
    }
    return copy;
}

static PyObject *
copy_of_tuple(PyObject *original)
{
    PyTypeObject *type = Py_TYPE(original);
    Py_ssize_t size = PyTuple_GET_SIZE(original);
    if (size == 0 && type == &PyTuple_Type) {
        return Py_NewRef(original);
    }
    PyObject *copy = type->tp_alloc(type, size);
    for (Py_ssize_t i = 0; copy != NULL && i < size; i++) {
        PyTuple_SET_ITEM(copy, i, Py_NewRef(PyTuple_GET_ITEM(original, i)));
    }
    return copy;
}

/* Copy one container and nothing below it. What cannot change, or be copied, is left out. */
static int
copy_one(Walk *walk, Node *node)
{
    PyObject *original = node->original;
    if (node->kind == STATE || node->kind == SETTLED || node->kind == DERIVED) {
        node->copy = copy_of_state(node);
    }
    else if (PyTuple_CheckExact(original) || (PyTuple_Check(original) && node->slots != NULL)) {
        node->copy = copy_of_tuple(original);
    }
    else if (PyDict_CheckExact(original)) {
        node->copy = PyDict_Copy(original);
    }
    else if (PyList_CheckExact(original)) {
        node->copy = PyList_GetSlice(original, 0, PyList_GET_SIZE(original));
    }
    else if (PyTuple_Check(original) || PyFrozenSet_CheckExact(original) ||
             (node->kind == OPAQUE && !PyByteArray_CheckExact(original))) {
        return 0;
    }
    else {  /* a set, deque, OrderedDict, defaultdict or bytearray: methods written in C */
        node->copy = PyObject_CallMethod(original, "copy", NULL);
    }
    return node->copy == NULL ? -1 : 0;
}

/* The copy of an object, or the object itself: a new reference. */
static PyObject *
copy_for(Walk *walk, PyObject *object)
{
    Py_ssize_t number = *place_of(walk, object);
    PyObject *copy = number < 0 ? NULL : walk->nodes[number].copy;
    return Py_NewRef(copy == NULL ? object : copy);
}

static int
rewire_dict(Walk *walk, PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        PyObject *other = copy_for(walk, value);
        int failed = other != value && (PyODict_CheckExact(dict) ? PyObject_SetItem(dict, key, other)
                                                                 : PyDict_SetItem(dict, key, other)) < 0;
        Py_DECREF(other);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

static int
rewire_deque(Walk *walk, PyObject *deque)
{
    for (Py_ssize_t i = 0; i < PySequence_Size(deque); i++) {
        PyObject *value = PySequence_GetItem(deque, i);
        PyObject *other = value == NULL ? NULL : copy_for(walk, value);
        int failed = other == NULL ||
                     (other != value && PySequence_SetItem(deque, i, other) < 0);
        Py_XDECREF(value);
        Py_XDECREF(other);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

static int
rewire_state(Walk *walk, Node *node)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(node->slots); i++) {
        PyObject *slot = PyTuple_GET_ITEM(node->slots, i);
        PyObject *value = Py_TYPE(slot)->tp_descr_get(slot, node->copy,
                                                      (PyObject *)Py_TYPE(node->copy));
        if (value == NULL) {
            PyErr_Clear();
            continue;
        }
        PyObject *other = copy_for(walk, value);
        int failed = other != value && Py_TYPE(slot)->tp_descr_set(slot, node->copy, other) < 0;
        Py_DECREF(value);
        Py_DECREF(other);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

/* Give an instance the copy of its `__dict__`. */
static int
rewire_attributes(Walk *walk, Node *node)
{
    if (node->attributes == NULL) {
        return 0;
    }
    PyObject *other = copy_for(walk, node->attributes);
    int failed = PyObject_GenericSetDict(node->copy, other, NULL) < 0;
    Py_DECREF(other);
    return failed ? -1 : 0;
}

/* Let a copy refer to copies. Keys and members of sets stay: they are seldom more than text. */
static int
rewire(Walk *walk, Node *node)
{
    PyObject *copy = node->copy;
    if (node->slots != NULL && rewire_state(walk, node) < 0) {
        return -1;
    }
    if (node->kind == STATE || node->kind == SETTLED) {
        return rewire_attributes(walk, node);
    }
    if (PyDict_Check(copy)) {
        return rewire_dict(walk, copy) < 0 ? -1 : rewire_attributes(walk, node);
    }
    if (PyList_Check(copy) || PyTuple_Check(copy)) {
        PyObject **items = PySequence_Fast_ITEMS(copy);
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(copy); i++) {
            Py_SETREF(items[i], copy_for(walk, items[i]));
        }
        return rewire_attributes(walk, node);
    }
    if (PyAnySet_Check(copy) || PyByteArray_Check(copy)) {
        return rewire_attributes(walk, node);
    }
    return rewire_deque(walk, copy);
}

static int
copy_all(Walk *walk)
{
    for (Py_ssize_t i = 0; i < walk->count; i++) {
        if (copy_one(walk, &walk->nodes[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
rewire_all(Walk *walk)
{
    for (Py_ssize_t i = 0; i < walk->count; i++) {
        if (walk->nodes[i].copy != NULL && rewire(walk, &walk->nodes[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* What was met so far, as the six numbers of `_Walk.lengths` in capture.py. */
static PyObject *
lengths(Walk *walk)
{
    Py_ssize_t sets = PyList_GET_SIZE(walk->sets);
    return Py_BuildValue("(nnnnnn)", PyList_GET_SIZE(walk->containers),
                         PyList_GET_SIZE(walk->referents), PyList_GET_SIZE(walk->dicts),
                         PyList_GET_SIZE(walk->keys), sets, sets);
}

/* Append a new reference, and let go of it. */
static int
push(PyObject *list, PyObject *item)
{
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* Watch all elements and copy what is below them, at one instant. */
static int
look(Walk *walk, PyObject *elements, PyObject *ends, PyObject *opaque)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(elements); i++) {
        int watched = walk_below(walk, PyList_GET_ITEM(elements, i));
        if (watched < 0 || (!watched && push(opaque, PyLong_FromSsize_t(i)) < 0) ||
            push(ends, lengths(walk)) < 0) {
            return -1;
        }
    }
    return walk->copying ? copy_all(walk) : 0;
}

/* The copy of each element, and the original of each copied instance by the copy's address. */
static int
list_copies(Walk *walk, PyObject *elements, PyObject *copies, PyObject *originals)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(elements); i++) {
        if (push(copies, copy_for(walk, PyList_GET_ITEM(elements, i))) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < walk->count; i++) {
        Node *node = &walk->nodes[i];
        if (node->copy != NULL && (node->kind == STATE || node->kind == SETTLED)) {
            PyObject *address = PyLong_FromVoidPtr(node->copy);
            int failed = address == NULL || PyDict_SetItem(originals, address, node->original) < 0;
            Py_XDECREF(address);
            if (failed) {
                return -1;
            }
        }
    }
    return 0;
}

static PyObject *
sizes_of(PyObject *sets)
{
    PyObject *sizes = PyList_New(0);
    for (Py_ssize_t i = 0; sizes != NULL && i < PyList_GET_SIZE(sets); i++) {
        if (push(sizes, PyLong_FromSsize_t(PyObject_Size(PyList_GET_ITEM(sets, i)))) < 0) {
            Py_CLEAR(sizes);
        }
    }
    return sizes;
}

static PyObject *
capture(PyObject *module, PyObject *arguments)
{
    PyObject *elements, *result = NULL;
    Walk walk = {.element = -1};
    if (!PyArg_ParseTuple(arguments, "O!O!O!p:capture", &PyList_Type, &elements, &PyDict_Type,
                          &walk.kinds, &PyDict_Type, &walk.layouts, &walk.copying)) {
        return NULL;
    }
    walk.containers = PyList_New(0);
    walk.referents = PyList_New(0);
    walk.dicts = PyList_New(0);
    walk.keys = PyList_New(0);
    walk.sets = PyList_New(0);
    PyObject *ends = PyList_New(0), *opaque = PyList_New(0), *copies = PyList_New(0);
    PyObject *originals = PyDict_New(), *sizes = NULL, *containers = NULL;
    if (walk.containers != NULL && walk.referents != NULL && walk.dicts != NULL &&
        walk.keys != NULL && walk.sets != NULL && ends != NULL && opaque != NULL &&
        copies != NULL && originals != NULL && make_room(&walk) == 0) {
        int collects = PyGC_Disable();  /* (what it finalizes may be Python code) */
        int failed = look(&walk, elements, ends, opaque) < 0;
        sizes = failed ? NULL : sizes_of(walk.sets);
        if (collects) {
            PyGC_Enable();
        }
        if (!failed && walk.copying) {
            failed = rewire_all(&walk) < 0 || list_copies(&walk, elements, copies, originals) < 0;
        }
        containers = failed ? NULL : PyList_AsTuple(walk.containers);
        if (walk.unknown != NULL && !PyErr_Occurred()) {
            result = Py_NewRef(walk.unknown);
        }
        else if (sizes != NULL && containers != NULL) {
            result = Py_BuildValue("((OOOOOO)OOOO)", containers, walk.referents, walk.dicts,
                                   walk.keys, walk.sets, sizes, ends, opaque, copies, originals);
        }
    }
    for (Py_ssize_t i = 0; i < walk.count; i++) {
        Py_XDECREF(walk.nodes[i].copy);
        Py_XDECREF(walk.nodes[i].attributes);
    }
    PyMem_Free(walk.nodes);
    PyMem_Free(walk.queue);
    PyMem_Free(walk.places);
    PyObject *owned[] = {walk.containers, walk.referents, walk.dicts, walk.keys, walk.sets, ends,
                         opaque, copies, originals, sizes, containers};
    for (size_t i = 0; i < sizeof(owned) / sizeof(*owned); i++) {
        Py_XDECREF(owned[i]);
    }
    return result;
}

static PyMethodDef methods[] = {
    {"intact", intact, METH_VARARGS, PyDoc_STR("See identity.portable_intact.")},
    {"same_front", same_front, METH_VARARGS, PyDoc_STR("See identity.portable_same_front.")},
    {"behind", behind, METH_VARARGS, PyDoc_STR("See identity.portable_behind.")},
    {"unchanged", unchanged, METH_VARARGS, PyDoc_STR("See identity.portable_unchanged.")},
    {"apart", apart, METH_VARARGS, PyDoc_STR("See identity.portable_apart.")},
    {"capture", capture, METH_VARARGS, PyDoc_STR("See capture.portable_capture.")},
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
