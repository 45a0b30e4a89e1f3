/* Identity of objects, copies of values as they are at one instant, and shadows of values
 * (shadow.py has the same in Python).
 *
 * Invariants: while a function here looks at objects, no Python code runs (except the hash of a
 * dict's unusual keys) and the collector is off, so that no other thread can change them
 * meanwhile. All answers are those of the Python version.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

static PyObject *kinds, *layouts, *copies_class;  /* see `prepare` */
static PyObject *dict_name;                      /* "__dict__" */

/* -- lists ---------------------------------------------------------------------------- */

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
same_front(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    if (given != 2 || !PyList_Check(arguments[0]) || !PyList_Check(arguments[1])) {
        PyErr_BadArgument();
        return NULL;
    }
    PyObject *one = arguments[0], *other = arguments[1];
    Py_ssize_t most = Py_MIN(PyList_GET_SIZE(one), PyList_GET_SIZE(other));
    return PyLong_FromSsize_t(common(one, other, most));
}

static PyObject *
behind(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    if (given != 3 || !PyList_Check(arguments[0]) || !PyLong_Check(arguments[1]) ||
        !PyList_Check(arguments[2])) {
        PyErr_BadArgument();
        return NULL;
    }
    PyObject *old = arguments[0], *now = arguments[2];
    Py_ssize_t size = PyLong_AsSsize_t(arguments[1]);
    if (size == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (size < 0 || size > PyList_GET_SIZE(old) || size > PyList_GET_SIZE(now) ||
        common(old, now, size) != size) {
        Py_RETURN_NONE;
    }
    return PyList_GetSlice(now, size, PyList_GET_SIZE(now));
}

/* -- shadows -------------------------------------------------------------------------- */

enum { MOST_OF_A_PART = 256, REACH = 8 };  /* elements; see `sink` */

typedef struct Shadow Shadow;

typedef union {
    PyObject *object;
    Py_ssize_t number;
    Shadow *part;
} Word;

/* A record of elements that detects changes. Immutable.
 *
 * It has parts, so that a shadow of a longer list shares them with the shadow that it extends; or
 * it has the elements itself. Then the first words, one for each element, are twice the number of
 * watch words of this element and all before it, plus one if the element cannot be watched. The
 * watches follow.
 *
 * A watch is an object, a count times four plus the way it is watched, and as many objects as the
 * count says: the object's referents, or a dict's keys and values (the interpreter does not report
 * the keys if all are text). For a set, the count is its size.
 *
 * The collector has to know of shadows: a value may refer to a class, and the class, by a method,
 * to the saver. (As for tuples, no `tp_clear` is needed: another object in the cycle has one.)
 */
struct Shadow {
    PyObject_VAR_HEAD
    Py_ssize_t count;  /* elements */
    Py_ssize_t parts;
    int is_opaque;     /* an element cannot be watched */
    Word words[1];
};

enum { REFERENTS, ITEMS, SIZE };

static PyTypeObject ShadowType;

static inline int
how_of(const Word *watch)
{
    return watch[1].number & 3;
}

static inline const Word *
behind_watch(const Word *watch)
{
    return watch + 2 + (how_of(watch) == SIZE ? 0 : watch[1].number >> 2);
}

/* Count the watch words of the first elements. */
static inline Py_ssize_t
words_of(const Word *ends, Py_ssize_t elements)
{
    return elements > 0 ? ends[elements - 1].number >> 1 : 0;
}

static inline Py_ssize_t
leaves(Shadow *shadow)
{
    return shadow->parts > 0 ? shadow->parts : shadow->count > 0;
}

/* The part of this number, which has its elements itself. */
static inline Shadow *
leaf_at(Shadow *shadow, Py_ssize_t number)
{
    return shadow->parts > 0 ? shadow->words[number].part : shadow;
}

static inline const Word *
watches_of(Shadow *leaf)
{
    return leaf->words + leaf->count;
}

static inline const Word *
end_of(Shadow *leaf)
{
    return leaf->words + Py_SIZE(leaf);
}

static int
visit_watches(const Word *at, const Word *end, visitproc visit, void *argument)
{
    while (at < end) {
        const Word *next = behind_watch(at);
        int result = visit(at->object, argument);
        for (at += 2; result == 0 && at < next; at++) {
            result = visit(at->object, argument);
        }
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

/* The objects that are expected next. */
typedef struct {
    const Word *next;
    const Word *end;
} Expected;

/* A `visitproc`: 0 to continue, 1 if the object is not the expected one. */
static int
meet(PyObject *object, void *argument)
{
    Expected *expected = argument;
    if (expected->next == expected->end || expected->next->object != object) {
        return 1;
    }
    expected->next++;
    return 0;
}

/* True if the container is empty: in a message most lists and dicts are. */
static int
is_empty(PyObject *container)
{
    return (PyDict_CheckExact(container) && PyDict_GET_SIZE(container) == 0) ||
           (PyList_CheckExact(container) && PyList_GET_SIZE(container) == 0);
}

/* `PyObject_IS_GC`, inlined. */
static int
is_gc(PyObject *container)
{
    PyTypeObject *type = Py_TYPE(container);
    return PyType_IS_GC(type) && (type->tp_is_gc == NULL || type->tp_is_gc(container));
}

/* Visit a dict's keys and values. */
static int
ask_items(PyObject *dict, visitproc visit, void *argument)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int result = 0;
    while (result == 0 && PyDict_Next(dict, &position, &key, &value)) {
        result = visit(key, argument);
        if (result == 0) {
            result = visit(value, argument);
        }
    }
    return result;
}

/* Visit a container's referents, as `gc.get_referents` does. */
static int
ask(PyObject *container, visitproc visit, void *argument)
{
    traverseproc traverse = Py_TYPE(container)->tp_traverse;
    return traverse != NULL && is_gc(container) ? traverse(container, visit, argument) : 0;
}

/* True if all watched objects are unchanged. */
static int
hold(const Word *at, const Word *end)
{
    while (at < end) {
        PyObject *object = at[0].object;
        Py_ssize_t number = at[1].number >> 2;
        int how = how_of(at), differ;
        at += 2;
        if (how == SIZE) {
            if (PySet_GET_SIZE(object) != number) {
                return 0;
            }
            continue;
        }
        if (number == 0 && is_empty(object)) {
            continue;
        }
        Expected expected = {at, at + number};
        differ = (how == ITEMS ? ask_items : ask)(object, meet, &expected);
        at += number;
        if (differ || expected.next != at) {
            return 0;
        }
    }
    return 1;
}

static int
own(PyObject *object, void *nothing)
{
    Py_INCREF(object);
    return 0;
}

static int
let_go(PyObject *object, void *nothing)
{
    Py_DECREF(object);
    return 0;
}

static Shadow *
new_shadow(Py_ssize_t count, Py_ssize_t words)
{
    Shadow *shadow = PyObject_GC_NewVar(Shadow, &ShadowType, words);
    if (shadow != NULL) {
        shadow->count = count;
        shadow->parts = 0;
        shadow->is_opaque = 0;
    }
    return shadow;
}

/* Write the ends of elements, moved by `before` words. */
static void
put_ends(Shadow *leaf, Py_ssize_t at, const Word *ends, Py_ssize_t count, Py_ssize_t before)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        leaf->words[at + i].number = ends[i].number + 2 * before;
        leaf->is_opaque |= ends[i].number & 1;
    }
}

/* Take references to all watched objects. */
static Shadow *
completed(Shadow *leaf)
{
    visit_watches(watches_of(leaf), end_of(leaf), own, NULL);
    if (watches_of(leaf) < end_of(leaf)) {
        PyObject_GC_Track(leaf);
    }
    return leaf;
}

/* The shadow of the elements `start <= i < stop`, at least one. */
static Shadow *
cut(const Word *ends, const Word *watches, Py_ssize_t start, Py_ssize_t stop)
{
    Py_ssize_t before = words_of(ends, start), words = words_of(ends, stop) - before;
    Shadow *leaf = new_shadow(stop - start, stop - start + words);
    if (leaf == NULL) {
        return NULL;
    }
    put_ends(leaf, 0, ends + start, stop - start, -before);
    if (words) {  /* (without any, `watches` may be NULL) */
        memcpy(leaf->words + leaf->count, watches + before, words * sizeof(Word));
    }
    return completed(leaf);
}

/* The shadow of the elements of both. */
static Shadow *
both(Shadow *one, Shadow *other)
{
    Py_ssize_t first = Py_SIZE(one) - one->count, second = Py_SIZE(other) - other->count;
    Shadow *leaf = new_shadow(one->count + other->count, Py_SIZE(one) + Py_SIZE(other));
    if (leaf == NULL) {
        return NULL;
    }
    put_ends(leaf, 0, one->words, one->count, 0);
    put_ends(leaf, one->count, other->words, other->count, first);
    Word *watches = leaf->words + leaf->count;
    memcpy(watches, watches_of(one), first * sizeof(Word));
    memcpy(watches + first, watches_of(other), second * sizeof(Word));
    return completed(leaf);
}

static void
let_all_go(Shadow **row, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(row[i]);
    }
}

/* The shadow of leaves in a row (takes ownership, even on failure). */
static PyObject *
row_of(Shadow **row, Py_ssize_t count)
{
    if (count == 1) {
        return (PyObject *)row[0];
    }
    Shadow *shadow = new_shadow(0, count);
    if (shadow == NULL) {
        let_all_go(row, count);
        return NULL;
    }
    shadow->parts = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        shadow->words[i].part = row[i];
        shadow->count += row[i]->count;
        shadow->is_opaque |= row[i]->is_opaque;
    }
    if (count > 0) {
        PyObject_GC_Track(shadow);
    }
    return (PyObject *)shadow;
}

/* Append a leaf (takes ownership) and merge neighbours, large ones less often, so that growing is
 * cheap. Returns the count, or -1 on error. */
static Py_ssize_t
sink(Shadow **row, Py_ssize_t count, Shadow *leaf)
{
    while (count > 0 && row[count - 1]->count <= REACH * leaf->count &&
           row[count - 1]->count + leaf->count <= MOST_OF_A_PART) {
        Shadow *before = row[--count], *joined = both(before, leaf);
        Py_DECREF(before);
        Py_DECREF(leaf);
        leaf = joined;
        if (leaf == NULL) {
            let_all_go(row, count);
            return -1;
        }
    }
    row[count] = leaf;
    return count + 1;
}

/* The shadow of the first's elements followed by those of the others. */
static PyObject *
join(PyObject *first, PyObject *const *others, Py_ssize_t given)
{
    Py_ssize_t room = 0, count = 0;
    for (Py_ssize_t i = -1; i < given; i++) {
        PyObject *shadow = i < 0 ? first : others[i];
        if (!Py_IS_TYPE(shadow, &ShadowType)) {
            PyErr_BadArgument();
            return NULL;
        }
        room += leaves((Shadow *)shadow);
    }
    Shadow **row = PyMem_Malloc(room * sizeof(Shadow *));
    if (row == NULL) {
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = -1; i < given && count >= 0; i++) {
        Shadow *shadow = (Shadow *)(i < 0 ? first : others[i]);
        for (Py_ssize_t j = 0; j < leaves(shadow) && count >= 0; j++) {
            Shadow *leaf = (Shadow *)Py_NewRef((PyObject *)leaf_at(shadow, j));
            count = sink(row, count, leaf);
        }
    }
    PyObject *result = count < 0 ? NULL : row_of(row, count);
    PyMem_Free(row);
    return result;
}

static PyObject *
Shadow_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    if (PyTuple_GET_SIZE(arguments) > 0 || names != NULL) {
        PyErr_BadArgument();
        return NULL;
    }
    return row_of(NULL, 0);
}

static int
Shadow_traverse(PyObject *self, visitproc visit, void *arg)
{
    Shadow *shadow = (Shadow *)self;
    if (shadow->parts == 0) {
        return visit_watches(watches_of(shadow), end_of(shadow), visit, arg);
    }
    for (Py_ssize_t i = 0; i < shadow->parts; i++) {
        Py_VISIT(shadow->words[i].part);
    }
    return 0;
}

static void
Shadow_dealloc(PyObject *self)
{
    Shadow *shadow = (Shadow *)self;
    PyObject_GC_UnTrack(self);
    if (shadow->parts > 0) {
        let_all_go((Shadow **)shadow->words, shadow->parts);
    }
    else {
        visit_watches(watches_of(shadow), end_of(shadow), let_go, NULL);
    }
    PyObject_GC_Del(self);
}

static PyObject *
Shadow_of_unwatched(PyObject *nothing, PyObject *argument)
{
    Py_ssize_t size = PyLong_AsSsize_t(argument);
    if (size < 0) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "Invalid size: %zd.", size);
    }
    Shadow *shadow = new_shadow(size, size);
    for (Py_ssize_t i = 0; shadow != NULL && i < size; i++) {
        shadow->words[i].number = 1;
        shadow->is_opaque = 1;
    }
    return (PyObject *)shadow;
}

static PyObject *
Shadow_joined(PyObject *nothing, PyObject *argument)
{
    PyObject *parts = PySequence_Fast(argument, "shadows are expected");
    if (parts == NULL) {
        return NULL;
    }
    PyObject **items = PySequence_Fast_ITEMS(parts);
    Py_ssize_t count = PySequence_Fast_GET_SIZE(parts);
    PyObject *result = count == 0   ? row_of(NULL, 0)
                       : count == 1 ? Py_NewRef(items[0])
                                    : join(items[0], items + 1, count - 1);
    Py_DECREF(parts);
    return result;
}

static PyObject *
Shadow_part(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    Shadow *shadow = (Shadow *)self;
    if (given != 2 || !PyLong_Check(arguments[0]) || !PyLong_Check(arguments[1])) {
        PyErr_BadArgument();
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(arguments[0]), stop = PyLong_AsSsize_t(arguments[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (start == 0 && stop == shadow->count) {
        return Py_NewRef(self);
    }
    Shadow **row = PyMem_Malloc(leaves(shadow) * sizeof(Shadow *));
    if (row == NULL) {
        return PyErr_NoMemory();
    }
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0, first = 0; i < leaves(shadow); i++) {
        Shadow *leaf = leaf_at(shadow, i);
        Py_ssize_t from = Py_MAX(start - first, 0), to = Py_MIN(stop - first, leaf->count);
        first += leaf->count;
        if (from >= to) {
            continue;
        }
        row[count] = to - from == leaf->count ? (Shadow *)Py_NewRef((PyObject *)leaf)
                                              : cut(leaf->words, watches_of(leaf), from, to);
        if (row[count++] == NULL) {
            let_all_go(row, count - 1);
            PyMem_Free(row);
            return NULL;
        }
    }
    PyObject *result = row_of(row, count);
    PyMem_Free(row);
    return result;
}

static int
hold_all(Shadow *shadow)
{
    for (Py_ssize_t i = 0; i < leaves(shadow); i++) {
        Shadow *leaf = leaf_at(shadow, i);
        if (!hold(watches_of(leaf), end_of(leaf))) {
            return 0;
        }
    }
    return 1;
}

static PyObject *
Shadow_holds(PyObject *self, PyObject *nothing)
{
    return PyBool_FromLong(!((Shadow *)self)->is_opaque && hold_all((Shadow *)self));
}

static PyObject *
Shadow_holds_now(PyObject *self, PyObject *nothing)
{
    return PyBool_FromLong(hold_all((Shadow *)self));
}

/* True if a list, tuple or dict has exactly the first `size` of `items`, in this order. */
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
Shadow_holds_in(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    if (given != 4 || !PyList_Check(arguments[2]) || !PyLong_Check(arguments[3])) {
        PyErr_BadArgument();
        return NULL;
    }
    Py_ssize_t size = PyLong_AsSsize_t(arguments[3]);
    if (size == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(consists_of(arguments[0], arguments[1], arguments[2], size) &&
                           hold_all((Shadow *)self));
}

/* The indexes of the elements that cannot be watched, and of the changed elements. */
static PyObject *
numbers(Shadow *shadow, int changed)
{
    PyObject *found = PyFrozenSet_New(NULL);
    for (Py_ssize_t i = 0, first = 0; found != NULL && i < leaves(shadow); i++) {
        Shadow *leaf = leaf_at(shadow, i);
        const Word *watches = watches_of(leaf);
        int holds = !changed || hold(watches, end_of(leaf));
        for (Py_ssize_t j = 0; j < leaf->count && (leaf->is_opaque || !holds); j++) {
            if ((leaf->words[j].number & 1) ||
                (!holds && !hold(watches + words_of(leaf->words, j),
                                 watches + words_of(leaf->words, j + 1)))) {
                PyObject *number = PyLong_FromSsize_t(first + j);
                int failed = number == NULL || PySet_Add(found, number) < 0;
                Py_XDECREF(number);
                if (failed) {
                    Py_DECREF(found);
                    return NULL;
                }
            }
        }
        first += leaf->count;
    }
    return found;
}

static PyObject *
Shadow_changed(PyObject *self, PyObject *nothing)
{
    return numbers((Shadow *)self, 1);
}

static PyObject *
Shadow_opaque(PyObject *self, void *nothing)
{
    return numbers((Shadow *)self, 0);
}

static PyObject *
Shadow_size(PyObject *self, void *nothing)
{
    return PyLong_FromSsize_t(((Shadow *)self)->count);
}

static PyObject *
Shadow_is_opaque(PyObject *self, void *nothing)
{
    return PyBool_FromLong(((Shadow *)self)->is_opaque);
}

/* The objects met so far, by address: open addressing, NULL for a free place. */
typedef struct {
    PyObject **places;
    size_t mask;
} Met;

/* True if an object is met for the first time. */
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

/* True if the object itself can change, not only its referents. */
static int
can_change(PyObject *object)
{
    return !PyTuple_Check(object) && !PyFrozenSet_CheckExact(object);
}

/* Count the containers whose referents are watched; with `met`, also those of them that can change
 * and were met before. */
static Py_ssize_t
containers(Shadow *shadow, Met *met)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < leaves(shadow); i++) {
        Shadow *leaf = leaf_at(shadow, i);
        for (const Word *at = watches_of(leaf); at < end_of(leaf); at = behind_watch(at)) {
            count += (how_of(at) == REFERENTS ||
                      (how_of(at) == ITEMS && PyDict_CheckExact(at->object))) &&
                     (met == NULL || (can_change(at->object) && !is_new(met, at->object)));
        }
    }
    return count;
}

static PyObject *
disjoint(PyObject *module, PyObject *shadows)
{
    Py_ssize_t count = 0;
    if (!PyList_Check(shadows)) {
        PyErr_BadArgument();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(shadows); i++) {
        if (!Py_IS_TYPE(PyList_GET_ITEM(shadows, i), &ShadowType)) {
            PyErr_BadArgument();
            return NULL;
        }
        count += containers((Shadow *)PyList_GET_ITEM(shadows, i), NULL);
    }
    Met met = {NULL, 63};
    while (met.mask < 2 * (size_t)count) {
        met.mask = 2 * met.mask + 1;
    }
    met.places = PyMem_Calloc(met.mask + 1, sizeof(PyObject *));
    PyObject *result = PyList_New(PyList_GET_SIZE(shadows));
    if (met.places == NULL || result == NULL) {
        PyMem_Free(met.places);
        Py_XDECREF(result);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(shadows); i++) {
        Py_ssize_t again = containers((Shadow *)PyList_GET_ITEM(shadows, i), &met);
        PyList_SET_ITEM(result, i, PyBool_FromLong(again == 0));
    }
    PyMem_Free(met.places);
    return result;
}

/* -- capturing ------------------------------------------------------------------------ */

enum { MOST_KINDS = 4096 };  /* classes that are remembered from one value to the next */

/* The kind of an instance for a shadow; as in shadow.py. */
enum { LEAF, CONTAINER, STATE, SETTLED, OPAQUE, DERIVED };

/* A container that was met. The original is borrowed: its referrers cannot change yet. */
typedef struct {
    PyObject *original;
    PyObject *copy;      /* owned; NULL if the original itself is used */
    PyObject *slots;     /* the descriptors of an instance's class; NULL if it is none */
    PyObject *attributes;  /* the `__dict__` of an instance, owned */
    Py_ssize_t element;  /* the element that it was met under last */
    int kind;
    int is_own;          /* an instance's `__dict__`, or the set of fields it was given */
} Node;

typedef struct {
    PyObject *unknown;  /* a class that `kinds` lacks, owned */
    Node *nodes;
    Py_ssize_t count, room, element;
    Py_ssize_t *queue;  /* the nodes met under the element, by number; -1 - number: once more */
    Py_ssize_t queued, queue_room;
    Py_ssize_t *places;  /* open addressing: an object's node, -1 for a free place */
    size_t mask;
    Word *watches;  /* as a shadow has them; the objects are borrowed */
    Py_ssize_t used, watches_room;
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

/* Append a word to the watches. */
static int
put(Walk *walk, Word word)
{
    if (walk->used == walk->watches_room) {
        Py_ssize_t room = walk->watches_room ? 4 * walk->watches_room : 256;
        Word *watches = PyMem_Realloc(walk->watches, room * sizeof(Word));
        if (watches == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        walk->watches = watches;
        walk->watches_room = room;
    }
    walk->watches[walk->used++] = word;
    return 0;
}

/* Begin a watch. */
static int
watch(Walk *walk, PyObject *object, int how, Py_ssize_t number)
{
    Word first = {.object = object}, second = {.number = 4 * number + how};
    return put(walk, first) < 0 ? -1 : put(walk, second);
}

/* The kind of an object; -1 if its class is not known (`unknown`), or on error. */
static int
kind_of(Walk *walk, PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBool_Type ||
        type == &PyFloat_Type || type == Py_TYPE(Py_None)) {
        return LEAF;
    }
    PyTypeObject *meta = Py_TYPE(type);
    if (meta->tp_hash != PyType_Type.tp_hash ||
        meta->tp_richcompare != PyType_Type.tp_richcompare) {
        return OPAQUE;  /* looking the class up would run the program's code */
    }
    PyObject *kind = PyDict_GetItemWithError(kinds, (PyObject *)type);
    if (kind == NULL) {
        if (!PyErr_Occurred()) {
            walk->unknown = Py_NewRef((PyObject *)type);
        }
        return -1;
    }
    return (int)PyLong_AsLong(kind);
}

/* A `visitproc`: queue an object under the current element if it is no leaf, and again each time
 * that it is met there, since it may change. */
static int
reach(PyObject *object, void *argument)
{
    Walk *walk = argument;
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

/* A `visitproc`: watch a referent. */
static int
note_only(PyObject *object, void *argument)
{
    return put(argument, (Word){.object = object});
}

/* A `visitproc`: watch a referent, and queue it. */
static int
note(PyObject *object, void *argument)
{
    return note_only(object, argument) < 0 ? -1 : reach(object, argument);
}

/* Watch a container. */
static int
note_by(Walk *walk, PyObject *object, int how, visitproc visit)
{
    Py_ssize_t start = walk->used;
    if (watch(walk, object, how, 0) < 0 ||
        (how == ITEMS ? ask_items : ask)(object, visit, walk) != 0) {
        return -1;
    }
    walk->watches[start + 1].number += 4 * (walk->used - start - 2);
    return 0;
}

/* Watch an object that was met under the element before; for an instance, its `__dict__`. */
static int
note_again(Walk *walk, Node *node)
{
    PyObject *object = node->attributes != NULL ? node->attributes : node->original;
    return note_by(walk, object, REFERENTS, note_only);
}

/* Watch an instance's `__dict__`, and the set of fields that a model was given. */
static int
note_state(Walk *walk, Py_ssize_t number)
{
    PyObject *object = walk->nodes[number].original, *attributes;
    PyObject *layout = PyDict_GetItemWithError(layouts, (PyObject *)Py_TYPE(object));
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
        if (reach(attributes, walk) < 0) {
            return -1;
        }
        walk->nodes[*place_of(walk, attributes)].is_own = 1;
    }
    if (walk->nodes[number].kind == SETTLED) {
        PyObject *descriptor = PyTuple_GET_ITEM(layout, 2);
        PyObject *given = Py_TYPE(descriptor)->tp_descr_get(descriptor, object,
                                                            (PyObject *)Py_TYPE(object));
        if (given == NULL || !PyAnySet_CheckExact(given)) {
            PyErr_Clear();  /* it was built by hand: the instance itself is watched */
            Py_XDECREF(given);
            walk->nodes[number].kind = STATE;
            return 0;
        }
        Py_ssize_t queued = walk->queued;
        int failed = watch(walk, given, SIZE, PySet_GET_SIZE(given)) < 0 || reach(given, walk) < 0;
        Py_DECREF(given);  /* (the instance has it) */
        if (failed) {
            return -1;
        }
        walk->nodes[*place_of(walk, given)].is_own = 1;
        walk->queued = queued;  /* (watched by its size alone) */
    }
    return 0;
}

/* Watch a container that is met for the first time under the element. */
static int
note_first(Walk *walk, Node *node)
{
    PyObject *object = node->original;
    if (node->kind == SETTLED) {
        return ask(object, reach, walk);
    }
    if (!PyDict_Check(object) || PyDict_GET_SIZE(object) == 0 || node->is_own) {
        return note_by(walk, object, REFERENTS, note);
    }
    if (PyDict_CheckExact(object)) {
        return note_by(walk, object, ITEMS, note);
    }
    return note_by(walk, object, ITEMS, note_only) < 0 ? -1
                                                       : note_by(walk, object, REFERENTS, note);
}

/* True if `layouts` may have the class: its instances have attributes. */
static int
may_have_layout(int kind, PyObject *object)
{
    return kind > CONTAINER || PyODict_CheckExact(object) ||
           (PyTuple_Check(object) && !PyTuple_CheckExact(object));
}

/* Watch the containers under an element: 1, or 0 if one cannot be watched. */
static int
walk_below(Walk *walk, PyObject *element)
{
    int watched = 1;
    walk->element++;
    walk->queued = 0;
    if (reach(element, walk) < 0) {
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
            watched = 0;  /* it may hide values from `gc`, but has parts to copy */
        }
        if (kind != CONTAINER && walk->nodes[number].slots == NULL) {
            walk->nodes[number].kind = OPAQUE;  /* the kinds of classes were just cleared */
            watched = 0;
            continue;
        }
        if (note_first(walk, &walk->nodes[number]) < 0) {
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

/* A new instance of the class, with only the values of the slots. */
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

/* Copy one container, not its contents. Objects that cannot change, or be copied, are skipped. */
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
    /* (`PyObject_GenericSetDict` leaves the values that 3.13 keeps in the instance itself.) */
    int failed = PyObject_GenericSetAttr(node->copy, dict_name, other) < 0;
    Py_DECREF(other);
    return failed ? -1 : 0;
}

/* Replace a copy's referents by their copies. Keys and members of sets stay: most are text. */
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

/* Forget the objects met so far. */
static void
forget(Walk *walk)
{
    for (Py_ssize_t i = 0; i < walk->count; i++) {
        Py_XDECREF(walk->nodes[i].copy);
        Py_XDECREF(walk->nodes[i].attributes);
    }
    walk->count = 0;
}

/* Watch some elements. */
static Shadow *
look_at(Walk *walk, PyObject **elements, Py_ssize_t count)
{
    Word ends[MOST_OF_A_PART];
    walk->used = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int watched = walk_below(walk, elements[i]);
        if (watched < 0) {
            return NULL;
        }
        ends[i].number = 2 * walk->used + !watched;
    }
    return cut(ends, walk->watches, 0, count);
}

/* Watch all elements; if copies are wanted, keep the objects that are met. */
static Shadow *
look(Walk *walk, PyObject *elements, int copying)
{
    Py_ssize_t count = PyList_GET_SIZE(elements), used = 0;
    Shadow **row = PyMem_Malloc((count / MOST_OF_A_PART + 1) * sizeof(Shadow *));
    if (row == NULL) {
        return (Shadow *)PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i += MOST_OF_A_PART) {
        if (i > 0 && !copying) {
            forget(walk);  /* (fewer are found faster) */
            memset(walk->places, -1, (walk->mask + 1) * sizeof(Py_ssize_t));
        }
        row[used] = look_at(walk, PySequence_Fast_ITEMS(elements) + i,
                            Py_MIN(MOST_OF_A_PART, count - i));
        if (row[used] == NULL) {
            let_all_go(row, used);
            PyMem_Free(row);
            return NULL;
        }
        used++;
    }
    PyObject *shadow = row_of(row, used);
    PyMem_Free(row);
    return (Shadow *)shadow;
}

/* The original of each copied instance, by the copy's address. */
static PyObject *
list_originals(Walk *walk)
{
    PyObject *originals = PyDict_New();
    for (Py_ssize_t i = 0; originals != NULL && i < walk->count; i++) {
        Node *node = &walk->nodes[i];
        if (node->copy != NULL && (node->kind == STATE || node->kind == SETTLED)) {
            PyObject *address = PyLong_FromVoidPtr(node->copy);
            if (address == NULL || PyDict_SetItem(originals, address, node->original) < 0) {
                Py_CLEAR(originals);
            }
            Py_XDECREF(address);
        }
    }
    return originals;
}

/* `WatchedCopies` of the elements, which become copies. */
static PyObject *
copies_of(Walk *walk, PyObject *elements, Shadow *shadow)
{
    PyTypeObject *type = (PyTypeObject *)copies_class;
    PyObject *originals = rewire_all(walk) < 0 ? NULL : list_originals(walk);
    PyObject *result = originals == NULL ? NULL : type->tp_alloc(type, 3);
    if (result == NULL) {
        Py_XDECREF(originals);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(elements); i++) {
        PyObject *original = PyList_GET_ITEM(elements, i);
        PyList_SET_ITEM(elements, i, copy_for(walk, original));
        Py_DECREF(original);
    }
    PyTuple_SET_ITEM(result, 0, Py_NewRef(elements));
    PyTuple_SET_ITEM(result, 1, Py_NewRef((PyObject *)shadow));
    PyTuple_SET_ITEM(result, 2, originals);
    return result;
}

/* Look at all objects reachable from the elements, at one instant. Returns their `WatchedCopies`
 * (takes ownership of the list), or with `copying` 0 their shadow. */
static PyObject *
look_once(Walk *walk, PyObject *elements, int copying)
{
    PyObject *result = NULL;
    if (make_room(walk) < 0) {
        return NULL;
    }
    int collects = PyGC_Disable();  /* (finalizers may be Python code) */
    Shadow *shadow = look(walk, elements, copying);
    int failed = shadow == NULL || (copying && copy_all(walk) < 0);
    if (collects) {
        PyGC_Enable();
    }
    if (!failed) {
        result = copying ? copies_of(walk, elements, shadow) : Py_NewRef((PyObject *)shadow);
    }
    Py_XDECREF(shadow);
    return result;
}

static void
end_walk(Walk *walk)
{
    forget(walk);
    PyMem_Free(walk->nodes);
    PyMem_Free(walk->queue);
    PyMem_Free(walk->places);
    PyMem_Free(walk->watches);
}

static PyObject *
capture(PyObject *elements, int copying)
{
    PyObject *result = NULL, *unknown = NULL;
    if (!PyList_Check(elements) || copies_class == NULL) {
        PyErr_BadArgument();
        return NULL;
    }
    if (PyDict_GET_SIZE(kinds) > MOST_KINDS) {
        PyDict_Clear(kinds);
        PyDict_Clear(layouts);
    }
    do {
        PyObject *taken = PyList_GetSlice(elements, 0, PyList_GET_SIZE(elements));
        if (taken == NULL) {
            return NULL;
        }
        Walk walk = {.element = -1};
        result = look_once(&walk, taken, copying);
        Py_DECREF(taken);
        end_walk(&walk);
        unknown = result == NULL && !PyErr_Occurred() ? walk.unknown : NULL;
        if (unknown != NULL) {  /* Python code looks the class up, so all must be read again */
            PyObject *kind = PyObject_GetItem(kinds, unknown);
            Py_XDECREF(kind);
            Py_DECREF(unknown);
            if (kind == NULL) {
                return NULL;
            }
        }
    } while (unknown != NULL);
    return result;
}

static PyObject *
copy_and_watch(PyObject *module, PyObject *elements)
{
    return capture(elements, 1);
}

static PyObject *
Shadow_of(PyObject *nothing, PyObject *elements)
{
    return capture(elements, 0);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

/* -- module --------------------------------------------------------------------------- */

static PyObject *
Shadow_extended(PyObject *self, PyObject *const *others, Py_ssize_t given)
{
    return given == 0 ? Py_NewRef(self) : join(self, others, given);
}

static PyMethodDef Shadow_methods[] = {
    {"of", Shadow_of, METH_O | METH_STATIC, NULL},
    {"of_unwatched", Shadow_of_unwatched, METH_O | METH_STATIC, NULL},
    {"joined", Shadow_joined, METH_O | METH_STATIC, NULL},
    {"extended", FAST(Shadow_extended), METH_FASTCALL, NULL},
    {"part", FAST(Shadow_part), METH_FASTCALL, NULL},
    {"holds", Shadow_holds, METH_NOARGS, NULL},
    {"holds_now", Shadow_holds_now, METH_NOARGS, NULL},
    {"holds_in", FAST(Shadow_holds_in), METH_FASTCALL, NULL},
    {"changed", Shadow_changed, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef Shadow_attributes[] = {
    {"size", Shadow_size, NULL, NULL, NULL},
    {"opaque", Shadow_opaque, NULL, NULL, NULL},
    {"is_opaque", Shadow_is_opaque, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject ShadowType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "threadkeep._core.engine._identity.Shadow",
    .tp_doc = PyDoc_STR("See shadow.PortableShadow."),
    .tp_basicsize = offsetof(Shadow, words),
    .tp_itemsize = sizeof(Word),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Shadow_new,
    .tp_traverse = Shadow_traverse,
    .tp_dealloc = Shadow_dealloc,
    .tp_free = PyObject_GC_Del,
    .tp_methods = Shadow_methods,
    .tp_getset = Shadow_attributes,
};

static PyObject *
prepare(PyObject *module, PyObject *arguments)
{
    PyObject *of_classes, *of_instances, *copies_type;
    if (!PyArg_ParseTuple(arguments, "O!O!O!:prepare", &PyDict_Type, &of_classes, &PyDict_Type,
                          &of_instances, &PyType_Type, &copies_type)) {
        return NULL;
    }
    Py_XSETREF(kinds, Py_NewRef(of_classes));
    Py_XSETREF(layouts, Py_NewRef(of_instances));
    Py_XSETREF(copies_class, Py_NewRef(copies_type));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"same_front", FAST(same_front), METH_FASTCALL,
     PyDoc_STR("See capture.portable_same_front.")},
    {"behind", FAST(behind), METH_FASTCALL, PyDoc_STR("See capture.portable_behind.")},
    {"disjoint", disjoint, METH_O, PyDoc_STR("See shadow.portable_disjoint.")},
    {"copy_and_watch", copy_and_watch, METH_O,
     PyDoc_STR("See shadow.portable_copy_and_watch.")},
    {"prepare", prepare, METH_VARARGS,
     PyDoc_STR("Set `capture.KINDS`, `capture.LAYOUTS` and `shadow.WatchedCopies`.")},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    if (dict_name == NULL && (dict_name = PyUnicode_InternFromString("__dict__")) == NULL) {
        return -1;
    }
    return PyModule_AddType(module, &ShadowType);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "threadkeep._core.engine._identity", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__identity(void)
{
    return PyModuleDef_Init(&definition);
}
