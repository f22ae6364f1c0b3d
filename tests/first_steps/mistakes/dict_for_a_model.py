"""A dictionary where the handler takes a model: it would do, if it had the model's fields."""

import asyncio

from pydantic import BaseModel

from trellis import Service

app = Service("shop", "memory://")


class Order(BaseModel):
    number: int
    customer: str


@app.job
async def pay(order: Order) -> None:
    print(order)


asyncio.run(pay.create({"number": 7, "costumer": "ada"}))
