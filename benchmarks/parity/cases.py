"""All cases, by name."""

from twins import dense, gan, images, language, tables, unet

CASES = {
    case.name: case
    for module in (images, unet, language, tables, dense, gan)
    for case in module.CASES
}
