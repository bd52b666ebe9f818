package revision

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/internal/testing/schema"
	"ebb.dev/ebb/settings"
)

// fullTemplates have a value in every field that the schema knows.
var fullTemplates = []string{`
metadata:
  labels: {team: blue, example.com/team: blue}
  annotations: {example.com/note: x}
spec:
  serviceAccountName: builder
  imagePullSecrets: [{name: registry}]
  nodeSelector: {disk: ssd}
  priorityClassName: high
  runtimeClassName: kata
  schedulerName: other
  dnsPolicy: ClusterFirst
  enableServiceLinks: false
  automountServiceAccountToken: false
  shareProcessNamespace: true
  containers:
  - name: main
    image: example.test/hello:1
    imagePullPolicy: IfNotPresent
    command: [run]
    args: [it]
    workingDir: /work
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    ports: [{containerPort: 8888, name: http1, protocol: TCP}]
    env:
    - {name: A, value: b}
    - {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu, containerName: main, divisor: 1m}}}
    - {name: D, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}
    - {name: E, valueFrom: {configMapKeyRef: {name: c, key: k, optional: true}}}
    envFrom:
    - {prefix: P_, secretRef: {name: s, optional: true}}
    - {prefix: Q_, configMapRef: {name: c, optional: true}}
    resources:
      requests: {cpu: 100m, memory: 64Mi, ephemeral-storage: 1Gi}
      limits: {cpu: "1", memory: 128Mi, example.com/gpu: 1, hugepages-2Mi: 4Mi}
    securityContext:
      runAsUser: 1000
      runAsGroup: 1000
      runAsNonRoot: true
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      privileged: false
      capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}
      seccompProfile: {type: Localhost, localhostProfile: profiles/a.json}
    readinessProbe: {httpGet: {path: /, port: 8888, host: localhost, scheme: HTTP, httpHeaders: [{name: A, value: b}]}, initialDelaySeconds: 1, timeoutSeconds: 1, periodSeconds: 1, successThreshold: 1, failureThreshold: 3}
    livenessProbe: {httpGet: {path: /live, port: 8888, host: localhost, scheme: HTTP, httpHeaders: [{name: A, value: b}]}, initialDelaySeconds: 1, timeoutSeconds: 1, periodSeconds: 1, successThreshold: 1, failureThreshold: 3}
    startupProbe: {exec: {command: [ls]}, initialDelaySeconds: 1, timeoutSeconds: 1, periodSeconds: 1, successThreshold: 1, failureThreshold: 3}
    volumeMounts:
    - {name: secret, mountPath: /secret, readOnly: true}
    - {name: map, mountPath: /map, subPath: a/b, readOnly: true}
    - {name: both, mountPath: /both, readOnly: true}
    - {name: scratch, mountPath: /scratch, mountPropagation: None}
    - {name: disk, mountPath: /disk}
  volumes:
  - {name: secret, secret: {secretName: s, defaultMode: 420, optional: true, items: [{key: k, path: p, mode: 420}]}}
  - {name: map, configMap: {name: c, defaultMode: 420, optional: true, items: [{key: k, path: p, mode: 420}]}}
  - name: both
    projected:
      defaultMode: 420
      sources:
      - secret: {name: s, optional: true, items: [{key: k, path: p1, mode: 420}]}
      - configMap: {name: c, optional: true, items: [{key: k, path: p2, mode: 420}]}
      - serviceAccountToken: {audience: a, path: t, expirationSeconds: 600}
      - downwardAPI: {items: [{path: labels, mode: 420, fieldRef: {fieldPath: metadata.labels}}, {path: cpu, resourceFieldRef: {containerName: main, resource: limits.cpu, divisor: 1m}}]}
  - {name: scratch, emptyDir: {medium: Memory, sizeLimit: 10Mi}}
  - {name: disk, persistentVolumeClaim: {claimName: d, readOnly: false}}
`, `
spec:
  containers:
  - name: main
    image: example.test/hello:1
    ports: [{containerPort: 8888}]
    readinessProbe: {tcpSocket: {port: 8888, host: localhost}, periodSeconds: 1}
    livenessProbe: {grpc: {port: 8888, service: s}, periodSeconds: 1}
    startupProbe: {tcpSocket: {port: 8888, host: localhost}, failureThreshold: 3}
  - name: beside
    image: example.test/beside:1
    env: [{name: A, value: b}]
    readinessProbe: {exec: {command: [ls]}, initialDelaySeconds: 1, timeoutSeconds: 1, periodSeconds: 1, successThreshold: 1, failureThreshold: 3}
    livenessProbe: {tcpSocket: {port: 9999, host: localhost}, successThreshold: 1}
    startupProbe: {httpGet: {path: /, port: 9999, scheme: HTTPS, httpHeaders: [{name: A, value: b}]}, successThreshold: 1}
    volumeMounts: [{name: own, mountPath: /own}]
  initContainers:
  - name: first
    image: example.test/first:1
    command: [run]
    env: [{name: A, value: b}]
    ports: [{containerPort: 9999, name: p, protocol: UDP}]
    resources: {requests: {cpu: 100m}, limits: {cpu: "1"}}
    volumeMounts: [{name: own, mountPath: /own}]
  volumes:
  - {name: own, emptyDir: {}}
`}

// wrong values for a field, whatever it is for.
var wrongValues = []any{
	"", "a b", "Bad_Name", "-x", "../x", "/abs", "=", "ünï", "0", "0.5", "1m", strings.Repeat("a", 64), strings.Repeat("a", 300),
	-1, 0, 2, 512, 65536, 1<<31 - 1, true, false, nil, []any{}, map[string]any{},
}

// keyed are the maps whose keys are the user's.
var keyed = []string{"labels", "annotations", "limits", "requests", "nodeSelector"}

// ofKubernetes are fields whose values are left to Kubernetes, because newer versions know more of
// them. A dry run asks the API server.
var ofKubernetes = regexp.MustCompile(`\.(fieldRef\.fieldPath|resourceFieldRef\.(resource|divisor))=`)

type mutant struct {
	what string
	text []byte
}

// mutants are a template with one thing wrong or different each.
func mutants(t *testing.T, manifest string) (all []mutant) {
	var root any
	if err := yaml.Unmarshal([]byte(manifest), &root); err != nil {
		t.Fatal(err)
	}
	add := func(what string) {
		text, err := json.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, mutant{what, text})
	}
	add("nothing")
	short := func(v any) string {
		text, _ := json.Marshal(v)
		if len(text) > 20 {
			return fmt.Sprintf("%s...(%d)", text[:10], len(text))
		}
		return string(text)
	}
	var walk func(path string, value any, set func(any))
	walk = func(path string, value any, set func(any)) {
		for _, wrong := range wrongValues {
			set(wrong)
			add(path + "=" + short(wrong))
		}
		set(value)
		switch v := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				inner := v[key]
				delete(v, key)
				add(path + " without " + key)
				for _, wrong := range wrongValues {
					if name, ok := wrong.(string); ok && slices.Contains(keyed, path[strings.LastIndex(path, ".")+1:]) {
						v[name] = inner
						add(path + " with " + short(name) + " for " + key)
						delete(v, name)
					}
				}
				v[key] = inner
				walk(path+"."+key, inner, func(to any) { v[key] = to })
			}
		case []any:
			set(append(slices.Clone(v), runtime.DeepCopyJSONValue(v[0])))
			add(path + " with the first twice")
			set(value)
			for i := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), v[i], func(to any) { v[i] = to })
			}
		}
	}
	walk("", root, func(to any) { root = to })
	return all
}

// What admission takes, Kubernetes takes: a Service whose Deployment is refused never becomes
// ready, and a dry run of it passed. The API server's own code judges the Deployments.
func TestKubernetesTakesThePodsThatAdmissionTakes(t *testing.T) {
	features := map[string]string{}
	for _, row := range rules.FeatureTable {
		features[string(row.Key)] = "enabled"
	}
	features[string(rules.KeySecurePodDefaults)] = "disabled"
	snapshot, err := settings.Parse(map[string]map[string]string{
		"config-deployment": {"queue-sidecar-image": "dev.local/queue-proxy:1"}, "config-features": features,
	})
	if err != nil {
		t.Fatal(err)
	}
	request := rules.Request[servingv1.Configuration]{Config: snapshot.Rules(), Operation: rules.Create}
	in := Inputs{Settings: snapshot, SystemNamespace: "knative-serving", ClusterDomain: "cluster.local", KeyName: "0a1b2c3d"}
	var admitted []mutant
	var deployments []any
	for _, manifest := range fullTemplates {
		for i, m := range mutants(t, manifest) {
			c := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "default"}}
			if json.Unmarshal(m.text, &c.Spec.Template) != nil {
				continue
			}
			c.SetDefaults(request)
			if errs := c.Validate(request).Filter(apis.ErrorLevel); errs != nil {
				if i == 0 {
					t.Fatal(errs)
				}
				continue
			}
			template := c.Spec.Template.DeepCopy()
			rev := &servingv1.Revision{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
			rev.Name, rev.Namespace, rev.UID = "hello-00001", "default", "11111111-1111-1111-1111-111111111111"
			if rev.Labels == nil {
				rev.Labels = map[string]string{}
			}
			rev.Labels[names.ConfigurationLabel] = c.Name
			d, err := MakeDeployment(rev, 1, in)
			if err != nil {
				t.Errorf("%s: admitted, and %v", m.what, err)
				continue
			}
			d.APIVersion, d.Kind = "apps/v1", "Deployment"
			admitted, deployments = append(admitted, m), append(deployments, d)
		}
	}
	kind := schema.Of(t, "../../../config/crd/configurations.serving.knative.dev.yaml")
	for i, wrong := range process.Ask[[]string](t, "../../../dev/validate", deployments) {
		if len(wrong) == 0 || ofKubernetes.MatchString(admitted[i].what) {
			continue
		}
		var template map[string]any
		if err := yaml.Unmarshal(admitted[i].text, &template); err != nil {
			t.Fatal(err)
		}
		object := map[string]any{"metadata": map[string]any{"name": "hello"}, "spec": map[string]any{"template": template}}
		kind.Decode(object)
		if len(kind.Validate(object)) == 0 {
			t.Errorf("%s: admitted, and Kubernetes says: %s", admitted[i].what, strings.Join(wrong, "; "))
		}
	}
}
