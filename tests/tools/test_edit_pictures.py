"""Pictures are shown as pictures, and what cannot be shown is named."""

import io

import pytest
from PIL import Image

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]


def picture_file(size, form, mode="RGB", **options):
    image = Image.new(mode, size, (200, 10, 20, 0)[: len(mode)] if mode != "L" else 200)
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
async def test_a_picture_is_shown(edit, form):
    edit.put(picture_file((64, 48), form), "photo.txt")
    result = await edit("view", "photo.txt")
    assert (result.ok, result.text) == (True, f"({form} picture, 64x48)")
    assert result.image.shape == (48, 64, 3)
    assert abs(result.image.astype(int) - (200, 10, 20)).max() < 8
    edit.put(picture_file((64, 48), form))
    assert "picture" in await edit.refuses("replace", old_text="a", new_text="b")


async def test_pictures_are_scaled_turned_and_put_on_white(edit):
    edit.put(picture_file((3000, 1500), "PNG"))
    result = await edit("view")
    assert result.text == "(PNG picture, 3000x1500, shown as 1280x640)"
    assert result.image.shape == (640, 1280, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    edit.put(picture_file((64, 48), "JPEG", exif=exif))
    result = await edit("view")
    assert (result.text, result.image.shape) == ("(JPEG picture, 48x64)", (64, 48, 3))
    edit.put(picture_file((8, 8), "PNG", "RGBA"))
    assert ((await edit("view")).image == 255).all()


async def test_pictures_that_are_damaged_or_too_large_are_named(edit):
    whole = picture_file((640, 480), "PNG")
    huge = whole[:16] + (60_000).to_bytes(4, "big") * 2 + whole[24:]
    for data in (whole[: len(whole) // 2], whole[:-20] + bytes(20), huge):
        edit.put(data)
        result = await edit("view")
        assert (result.ok, f"is a PNG picture of {len(data)} bytes" in result.text) == (False, True)
    for text in ("BM is not always a picture\n", "ID3 is a way to learn trees\n", "RIFF\nGIF8\n"):
        edit.put(text.encode())
        assert text.split("\n")[0] in await edit.does("view")
