"""A handler that does not say what its payload is."""

from trellis import Service

app = Service("shop")


@app.job
async def pay(order):
    print(order)
