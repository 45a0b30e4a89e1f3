"""Values that an older release of the program stored are read in the shapes of this one."""

import pytest
from kit.generations import release, withdraw

from threadkeep import Migrations, register
from threadkeep._core.codec import DEFAULT_REGISTRY, NativeCodec, codec_of
from threadkeep._core.codec.codecs import PlainCodec, RawCodec
from threadkeep.errors import (
    InvalidArgumentError,
    NewerShapeError,
    StateMigrationError,
    UnknownTypeError,
)
from threadkeep.threads.diff import plain

OLD = """
@dataclass
class Data:
    name: str
    price: int = 1

@attrs.define
class Attrs:
    name: str
    price: int = 1

class Model(pydantic.BaseModel):
    name: str
    price: int = 1
    _note: str = "none"

class V1(pydantic.v1.BaseModel):
    name: str
    price: int = 1

class Tuple(NamedTuple):
    name: str
    price: int = 1
"""
NEW = """
@dataclass
class Data:
    title: str
    price: str
    currency: str = "EUR"

@attrs.define
class Attrs:
    title: str
    price: str
    currency: str = "EUR"

class Model(pydantic.BaseModel):
    title: str = pydantic.Field(alias="the title")
    price: str
    currency: str = "EUR"
    _note: str = "none"

class V1(pydantic.v1.BaseModel):
    title: str
    price: str
    currency: str = "EUR"

class Tuple(NamedTuple):
    title: str
    price: str
    currency: str = "EUR"
"""
KINDS = ("Data", "Attrs", "Model", "V1", "Tuple")


def changes(*names: str, version: int = 2) -> Migrations:
    migrations = Migrations()
    for name in names:

        @migrations.type(f"shop.{name}", version=version)
        def change(fields):
            return {"title": fields["name"], "price": str(fields["price"])}

    return migrations


@pytest.fixture
def old(monkeypatch):
    """The bytes of a value of each kind, as the old release stores them."""
    shop = release(monkeypatch, OLD)
    return {name: NativeCodec().encode(getattr(shop, name)(name="tea", price=3)) for name in KINDS}


@pytest.mark.parametrize("name", KINDS)
def test_fields_are_renamed_retyped_and_added(old, name, monkeypatch):
    shop = release(monkeypatch, NEW)
    codec = codec_of(changes(name))
    value = codec.decode(old[name])
    assert type(value) is getattr(shop, name)
    assert (value.title, value.price, value.currency) == ("tea", "3", "EUR")
    stored = codec.encode(value)
    assert f"shop:{name}@2".encode() in stored
    assert codec.decode(stored) == value
    assert codec.renewed(old[name]) == stored
    assert codec.renewed(stored) is None


def test_private_attributes_and_the_set_of_fields_stay(monkeypatch):
    shop = release(monkeypatch, OLD)
    model = shop.Model(name="tea")
    model._note = "hot"
    data = NativeCodec().encode(model)
    shop = release(monkeypatch, OLD.replace("price: int = 1", "price: int = 1; size: int = 2"))
    migrations = Migrations()
    migrations.type(shop.Model, 2)(lambda fields: {**fields, "size": 7})
    value = codec_of(migrations).decode(data)
    assert (value.size, value._note, value.model_fields_set) == (7, "hot", {"name", "size"})


def test_values_within_values_are_migrated_and_classes_without_a_migration_stay(old, monkeypatch):
    release(monkeypatch, OLD)
    plain_codec, codec = NativeCodec(), codec_of(changes("Attrs"))
    inner = plain_codec.decode(old["Attrs"])
    data = plain_codec.encode({"one": [plain_codec.decode(old["Data"]), (inner,)], "two": {3: 4}})
    shop = release(monkeypatch, NEW.replace(NEW[: NEW.index("@attrs")], OLD[: OLD.index("@attrs")]))
    found = codec.decode(data)
    assert found == {"one": [shop.Data("tea", 3), (shop.Attrs("tea", "3"),)], "two": {3: 4}}
    assert codec.encode(found["one"][0]) == NativeCodec().encode(found["one"][0])


def test_functions_run_in_order_from_the_stored_shape_on(monkeypatch):
    release(monkeypatch, "@dataclass\nclass Order:\n    steps: list\n")
    steps = Migrations()
    for number in (2, 3, 5):
        steps.type("shop:Order", number)(lambda f, n=number: {"steps": [*f["steps"], n]})
    shop = release(monkeypatch, "@dataclass\nclass Order:\n    steps: list\n")
    two = Migrations()
    two.type("shop.Order", 2)(lambda fields: fields)
    codec = codec_of(steps)
    assert codec.decode(NativeCodec().encode(shop.Order([]))).steps == [2, 3, 5]
    assert codec.decode(codec_of(two).encode(shop.Order([]))).steps == [3, 5]
    assert codec.decode(codec.encode(shop.Order([]))).steps == []


@pytest.mark.parametrize("name", KINDS)
def test_a_class_that_was_moved_is_found_and_named_anew(old, name, monkeypatch):
    withdraw(monkeypatch)
    home = release(monkeypatch, OLD, "store.orders")
    with pytest.raises(UnknownTypeError):
        NativeCodec().decode(old[name])
    for new in (getattr(home, name), f"store.orders:{name}"):
        migrations = Migrations()
        migrations.moved(f"shop.{name}", new)
        codec = codec_of(migrations)
        value = codec.decode(old[name])
        assert value == getattr(home, name)(name="tea", price=3)
        assert codec.renewed(old[name]) == NativeCodec().encode(value)
        assert b"shop" not in codec.encode(value)


def test_a_class_may_be_moved_renamed_and_changed_in_turn(old, monkeypatch):
    withdraw(monkeypatch)
    release(monkeypatch, NEW.replace("class Data", "class Item"), "store")
    migrations = changes("Data")
    migrations.moved("shop.Data", "shop.Thing")
    migrations.moved("shop.Thing", "store.Item")
    migrations.type("store.Item", 3)(lambda fields: {**fields, "currency": "CHF"})
    codec = codec_of(migrations)
    value = codec.decode(old["Data"])
    assert (value.title, value.currency) == ("tea", "CHF")
    assert b"store:Item@3" in codec.encode(value)
    assert codec.decode(codec.encode(value)) == value


def test_a_dataclass_may_become_a_model_and_a_class_may_become_a_dict(old, monkeypatch):
    shop = release(
        monkeypatch, "class Data(pydantic.BaseModel):\n    name: str\n    price: float = 0\n"
    )
    migrations = Migrations()
    migrations.type(shop.Data, 2)(lambda fields: fields)
    migrations.moved("shop.Attrs", dict)
    codec = codec_of(migrations)
    assert codec.decode(old["Data"]) == shop.Data(name="tea", price=3.0)
    assert codec.decode(old["Attrs"]) == {"name": "tea", "price": 3}
    assert codec.renewed(old["Attrs"]) == NativeCodec().encode({"name": "tea", "price": 3})


def test_enums_subclasses_exceptions_and_decoded_classes(monkeypatch):
    source = """
class Colour(enum.Enum):
    RED = 1
class Name(str):
    pass
class NoStockError(Exception):
    pass
class Odd:
    def __init__(self, n):
        self.n = n
"""
    shop = release(monkeypatch, source)
    register(shop.Odd, encode=lambda odd: odd.n, decode=shop.Odd)
    values = [shop.Colour.RED, shop.Name("ann"), shop.NoStockError("tea", 3), shop.Odd(7)]
    data = [NativeCodec().encode(value) for value in values]
    shop = release(monkeypatch, source.replace("RED", "CRIMSON"))
    register(shop.Odd, encode=lambda odd: [odd.n], decode=lambda stored: shop.Odd(stored[0]))
    migrations = Migrations()
    migrations.type(shop.Colour, 2)(lambda _: {"value": "CRIMSON"})
    migrations.type(shop.Name, 2)(lambda fields: {"value": fields["value"].title()})
    migrations.type(shop.NoStockError, 2)(lambda fields: {"args": fields["args"][:1]})
    migrations.type(shop.Odd, 2)(lambda fields: {"value": [fields["value"]]})
    codec = codec_of(migrations)
    found = [codec.decode(each) for each in data]
    assert found[:2] == [shop.Colour.CRIMSON, "Ann"]
    assert (type(found[2]), found[2].args, found[3].n) == (shop.NoStockError, ("tea",), 7)
    again = [codec.decode(codec.encode(value)) for value in found]
    assert again[:2] == found[:2]
    assert again[3].n == 7
    with pytest.raises(NewerShapeError):
        NativeCodec().decode(codec.encode(found[3]))
    DEFAULT_REGISTRY.foreign.pop("shop:Odd")


def test_a_class_that_is_registered_later_is_stored_in_its_shape(monkeypatch):
    shop = release(monkeypatch, "class Odd:\n    n = 1\n")
    migrations = Migrations()
    migrations.type(shop.Odd, 2)(lambda fields: fields)
    codec = codec_of(migrations)
    with pytest.raises(TypeError):
        codec.encode(shop.Odd())
    register(shop.Odd)
    assert b"shop:Odd@2" in codec.encode(shop.Odd())
    DEFAULT_REGISTRY.named.pop("shop:Odd")


# -- failures ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_older_programs_refuse_newer_shapes_and_show_them(old, name, monkeypatch):
    release(monkeypatch, NEW)
    three = changes(name)
    three.type(f"shop.{name}", 3)(lambda fields: fields)
    data = codec_of(three).renewed(old[name])
    release(monkeypatch, OLD)
    for codec, known in ((NativeCodec(), 1), (codec_of(changes(name)), 2)):
        with pytest.raises(NewerShapeError, match=f"shape 3 of shop.{name}.*knows shape {known}"):
            codec.decode(data)
    for raw in (RawCodec(), PlainCodec()):
        shown = plain(raw.decode(data))
        assert shown["__class__"] == f"shop.{name}"
        assert (shown["__shape__"], shown["title"]) == (3, "tea")


def test_a_value_is_shown_as_it_is_stored_without_running_its_class(old, monkeypatch):
    release(monkeypatch, OLD)
    shown = plain(PlainCodec().decode(old["Model"]))
    assert shown == {"__class__": "shop.Model", "name": "tea", "price": 3}


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda fields: fields["nothing"], "migration of shop.Model to shape 2 failed: KeyError"),
        (lambda fields: [*fields], "returned a list"),
        (lambda fields: {"price": fields["price"]}, "no valid shop.Model: ValidationError"),
        (lambda _: {"title": 5, "price": "1"}, "no valid shop.Model: ValidationError"),
    ],
)
def test_a_migration_that_fails_is_named(old, function, error, monkeypatch):
    release(monkeypatch, NEW)
    migrations = Migrations()
    migrations.type("shop.Model", 2)(function)
    with pytest.raises(StateMigrationError, match=error):
        codec_of(migrations).decode(old["Model"])


@pytest.mark.parametrize("name", ["Data", "Attrs", "Tuple"])
def test_fields_without_a_value_are_named(old, name, monkeypatch):
    release(monkeypatch, NEW)
    migrations = Migrations()
    migrations.type(f"shop.{name}", 2)(lambda fields: {"title": fields["name"]})
    with pytest.raises((StateMigrationError, UnknownTypeError), match="price"):
        codec_of(migrations).decode(old[name])


def test_a_shape_whose_function_was_removed_is_named(old, monkeypatch):
    release(monkeypatch, OLD)
    migrations = Migrations()
    migrations.type("shop.Data", 2)
    with pytest.raises(StateMigrationError, match=r"No migration .* shape 1 of shop\.Data"):
        codec_of(migrations).decode(old["Data"])


def test_registrations_are_checked():
    migrations = Migrations()
    for name in ("Order", "", "shop.Order@2", 5):
        with pytest.raises(InvalidArgumentError, match="class"):
            migrations.type(name, 2)
    for version in (1, 0, True, "2"):
        with pytest.raises(InvalidArgumentError, match="version"):
            migrations.type("shop.Order", version)
    with pytest.raises(InvalidArgumentError, match="migration"):
        migrations.type("shop.Order", 2)(5)
    with pytest.raises(InvalidArgumentError, match="two migrations to version 2"):
        migrations.type("shop:Order", 2)
    migrations.moved("shop.Old", "shop.Order")
    with pytest.raises(InvalidArgumentError, match="already"):
        migrations.moved("shop.Old", dict)
    codec_of(migrations)
    with pytest.raises(InvalidArgumentError, match="Register all"):
        migrations.type("shop.Order", 3)
    circle = Migrations()
    circle.moved("shop.A", "shop.B")
    circle.moved("shop.B", "shop.A")
    with pytest.raises(InvalidArgumentError, match="circle"):
        codec_of(circle)
    both = Migrations()
    both.moved("shop.A", "shop.B")
    both.type("shop.A", 2)
    both.type("shop.B", 2)
    with pytest.raises(InvalidArgumentError, match="shop:B has two migrations"):
        codec_of(both)
