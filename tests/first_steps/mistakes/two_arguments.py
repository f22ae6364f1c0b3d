"""A handler with two payload arguments."""

from trellis import Service

app = Service("shop")


@app.job
async def pay(order: int, amount: float) -> None:
    print(order, amount)
