"""The part of the Kubernetes and KEDA resources that the manifests in deploy/ use, as closed types.

Written from the documented fields: a field that is misspelled, in the wrong place or of the wrong
type is refused, as the API server with strict field validation refuses it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, model_validator


class Resource(BaseModel):
    """A part of a manifest: no other fields, no conversions between types."""

    model_config = ConfigDict(extra="forbid", strict=True)


#: Names of most resources (DNS-1123), of ports (IANA), of environment variables; quantities.
Name = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)
]
PortName = Annotated[str, StringConstraints(pattern=r"^[a-z](-?[a-z0-9])*$", max_length=15)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)]
Quantity = Annotated[
    str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$", max_length=20)
]
LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=317
    ),
]
LabelValue = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)
]
Labels = dict[LabelKey, LabelValue]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0)]
Number = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?$", max_length=20)]


class Metadata(Resource):
    """Of a resource."""

    name: Name
    labels: Labels = {}
    annotations: dict[LabelKey, str] = {}


class KeyRef(Resource):
    """A key of a secret."""

    name: Name
    key: str


class FieldRef(Resource):
    """A field of the pod."""

    fieldPath: Literal["metadata.name", "metadata.namespace", "spec.nodeName", "status.podIP"]  # noqa: N815


class ValueFrom(Resource):
    """Where a variable comes from; one of them."""

    secretKeyRef: KeyRef | None = None  # noqa: N815
    fieldRef: FieldRef | None = None  # noqa: N815

    @model_validator(mode="after")
    def _one(self) -> ValueFrom:
        if (self.secretKeyRef is None) == (self.fieldRef is None):
            raise ValueError("exactly one source")
        return self


class EnvVar(Resource):
    """An environment variable."""

    name: Variable
    value: str | None = None
    valueFrom: ValueFrom | None = None  # noqa: N815


class ContainerPort(Resource):
    """A port of a container."""

    name: PortName
    containerPort: Port  # noqa: N815


class Header(Resource):
    """A header of a probe."""

    name: str
    value: str


class HttpGet(Resource):
    """The request of a probe."""

    path: Annotated[str, StringConstraints(pattern="^/")]
    port: PortName | Port
    httpHeaders: list[Header] = []  # noqa: N815


class Probe(Resource):
    """A probe."""

    httpGet: HttpGet  # noqa: N815
    periodSeconds: Port | None = None  # noqa: N815


class Resources(Resource):
    """What a container asks for."""

    requests: dict[Literal["cpu", "memory"], Quantity] = {}
    limits: dict[Literal["cpu", "memory"], Quantity] = {}


class Capabilities(Resource):
    """Capabilities of Linux."""

    drop: list[str] = []


class SecurityContext(Resource):
    """What a container may do."""

    allowPrivilegeEscalation: bool  # noqa: N815
    runAsNonRoot: bool  # noqa: N815
    runAsUser: Count  # noqa: N815
    capabilities: Capabilities


class Container(Resource):
    """A container."""

    name: Name
    image: str
    args: list[str]
    env: list[EnvVar] = []
    ports: list[ContainerPort] = []
    readinessProbe: Probe | None = None  # noqa: N815
    livenessProbe: Probe | None = None  # noqa: N815
    resources: Resources | None = None
    securityContext: SecurityContext | None = None  # noqa: N815


class PodMetadata(Resource):
    """Of the pods of a workload."""

    labels: Labels = {}
    annotations: dict[LabelKey, str] = {}


class PodSpec(Resource):
    """A pod."""

    containers: Annotated[list[Container], Field(min_length=1)]
    restartPolicy: Literal["Always", "OnFailure", "Never"] | None = None  # noqa: N815
    terminationGracePeriodSeconds: Count | None = None  # noqa: N815


class PodTemplate(Resource):
    """What pods are made from."""

    metadata: PodMetadata | None = None
    spec: PodSpec


class Selector(Resource):
    """Which pods belong to a workload."""

    matchLabels: Labels  # noqa: N815


class DeploymentSpec(Resource):
    """A deployment."""

    replicas: Count = 1
    selector: Selector
    template: PodTemplate


class Deployment(Resource):
    """apps/v1 Deployment."""

    apiVersion: Literal["apps/v1"]  # noqa: N815
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec

    @model_validator(mode="after")
    def _selects_its_pods(self) -> Deployment:
        pod = self.spec.template
        labels = {} if pod.metadata is None else pod.metadata.labels
        if not self.spec.selector.matchLabels.items() <= labels.items():
            raise ValueError("the selector does not match the labels of the template")
        if pod.spec.restartPolicy not in {None, "Always"}:
            raise ValueError("pods of a deployment are always restarted")
        return self


class ServicePort(Resource):
    """A port of a service."""

    name: PortName
    port: Port
    targetPort: PortName | Port  # noqa: N815


class ServiceSpec(Resource):
    """A service."""

    selector: Labels
    ports: list[ServicePort]


class Service(Resource):
    """v1 Service."""

    apiVersion: Literal["v1"]  # noqa: N815
    kind: Literal["Service"]
    metadata: Metadata
    spec: ServiceSpec


class JobSpec(Resource):
    """A job of Kubernetes; its pods must say that they are not always restarted."""

    backoffLimit: Count | None = None  # noqa: N815
    ttlSecondsAfterFinished: Count | None = None  # noqa: N815
    activeDeadlineSeconds: Port | None = None  # noqa: N815
    parallelism: Count | None = None
    completions: Count | None = None
    template: PodTemplate

    @model_validator(mode="after")
    def _ends(self) -> JobSpec:
        if self.template.spec.restartPolicy not in {"Never", "OnFailure"}:
            raise ValueError("pods of a job need restartPolicy Never or OnFailure")
        return self


class Job(Resource):
    """batch/v1 Job."""

    apiVersion: Literal["batch/v1"]  # noqa: N815
    kind: Literal["Job"]
    metadata: Metadata
    spec: JobSpec


class SecretTarget(Resource):
    """A parameter of a trigger that comes from a secret."""

    parameter: str
    name: Name
    key: str


class AuthenticationSpec(Resource):
    """Where triggers get their secrets."""

    secretTargetRef: Annotated[list[SecretTarget], Field(min_length=1)]  # noqa: N815


class TriggerAuthentication(Resource):
    """keda.sh/v1alpha1 TriggerAuthentication."""

    apiVersion: Literal["keda.sh/v1alpha1"]  # noqa: N815
    kind: Literal["TriggerAuthentication"]
    metadata: Metadata
    spec: AuthenticationSpec


class AuthenticationRef(Resource):
    """Which authentication a trigger uses."""

    name: Name
    kind: Literal["TriggerAuthentication", "ClusterTriggerAuthentication"] = "TriggerAuthentication"


class PostgresMetadata(Resource):
    """The metadata of the scaler for PostgreSQL: all of them are texts."""

    query: str
    targetQueryValue: Number  # noqa: N815
    activationTargetQueryValue: Number | None = None  # noqa: N815


class Trigger(Resource):
    """What KEDA looks at."""

    type: Literal["postgresql"]
    metadata: PostgresMetadata
    authenticationRef: AuthenticationRef  # noqa: N815
    metricType: Literal["AverageValue", "Value"] | None = None  # noqa: N815


class TargetRef(Resource):
    """What KEDA scales; a deployment by default."""

    name: Name
    apiVersion: str = "apps/v1"  # noqa: N815
    kind: str = "Deployment"


class ScaledObjectSpec(Resource):
    """How many pods a workload has."""

    scaleTargetRef: TargetRef  # noqa: N815
    pollingInterval: Count = 30  # noqa: N815
    cooldownPeriod: Count = 300  # noqa: N815
    minReplicaCount: Count = 0  # noqa: N815
    maxReplicaCount: Count = 100  # noqa: N815
    triggers: Annotated[list[Trigger], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits(self) -> ScaledObjectSpec:
        if self.minReplicaCount > self.maxReplicaCount:
            raise ValueError("minReplicaCount is above maxReplicaCount")
        return self


class ScaledObject(Resource):
    """keda.sh/v1alpha1 ScaledObject."""

    apiVersion: Literal["keda.sh/v1alpha1"]  # noqa: N815
    kind: Literal["ScaledObject"]
    metadata: Metadata
    spec: ScaledObjectSpec


class ScalingStrategy(Resource):
    """How running jobs count."""

    strategy: Literal["default", "custom", "accurate", "eager"]


class ScaledJobSpec(Resource):
    """How many jobs of Kubernetes run."""

    jobTargetRef: JobSpec  # noqa: N815
    pollingInterval: Count = 30  # noqa: N815
    successfulJobsHistoryLimit: Count = 100  # noqa: N815
    failedJobsHistoryLimit: Count = 100  # noqa: N815
    minReplicaCount: Count = 0  # noqa: N815
    maxReplicaCount: Count = 100  # noqa: N815
    scalingStrategy: ScalingStrategy | None = None  # noqa: N815
    triggers: Annotated[list[Trigger], Field(min_length=1)]


class ScaledJob(Resource):
    """keda.sh/v1alpha1 ScaledJob."""

    apiVersion: Literal["keda.sh/v1alpha1"]  # noqa: N815
    kind: Literal["ScaledJob"]
    metadata: Metadata
    spec: ScaledJobSpec


#: Reads any manifest in deploy/.
MANIFEST: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        Deployment | Service | Job | TriggerAuthentication | ScaledObject | ScaledJob,
        Field(discriminator="kind"),
    ]
)
