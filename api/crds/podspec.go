package main

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// The fields of a pod that stay in the schema. What is not listed is dropped by the API server
// before anybody sees it: restartPolicy, nodeName, lifecycle, stdin, tty, hostPort, the grace
// period of a probe and the like, which Ebb decides itself or which contradict pods that come and
// go.
var (
	podFields = []string{
		"affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy", "enableServiceLinks",
		"hostAliases", "hostIPC", "hostNetwork", "hostPID", "imagePullSecrets", "initContainers", "nodeSelector",
		"priorityClassName", "runtimeClassName", "schedulerName", "securityContext", "serviceAccountName",
		"shareProcessNamespace", "tolerations", "topologySpreadConstraints", "volumes",
		// Not a pod's: the Revision's own.
		"containerConcurrency", "timeoutSeconds", "responseStartTimeoutSeconds", "idleTimeoutSeconds",
	}
	containerFields = []string{
		"args", "command", "env", "envFrom", "image", "imagePullPolicy", "livenessProbe", "name", "ports",
		"readinessProbe", "resources", "securityContext", "startupProbe", "terminationMessagePath",
		"terminationMessagePolicy", "volumeMounts", "workingDir",
	}
	portFields            = []string{"containerPort", "name", "protocol"}
	securityContextFields = []string{
		"allowPrivilegeEscalation", "capabilities", "privileged", "readOnlyRootFilesystem", "runAsGroup",
		"runAsNonRoot", "runAsUser", "seccompProfile",
	}
	probeFields = []string{
		"exec", "failureThreshold", "grpc", "httpGet", "initialDelaySeconds", "periodSeconds", "successThreshold",
		"tcpSocket", "timeoutSeconds",
	}
	// queue-proxy runs these probes too. It does not know the newer httpGet.protocol and grpc.mode.
	httpGetFields     = []string{"host", "httpHeaders", "path", "port", "scheme"}
	grpcFields        = []string{"port", "service"}
	envSourceFields   = []string{"configMapKeyRef", "fieldRef", "resourceFieldRef", "secretKeyRef"}
	volumeMountFields = []string{"mountPath", "mountPropagation", "name", "readOnly", "subPath"}
	volumeFields      = []string{
		"configMap", "csi", "emptyDir", "ephemeral", "hostPath", "image", "name", "persistentVolumeClaim",
		"projected", "secret",
	}

	// Behind feature flags, which the webhook knows and the schema cannot: their insides are left
	// to Kubernetes.
	openPodFields    = []string{"affinity", "dnsConfig", "securityContext"}
	openListFields   = []string{"hostAliases", "initContainers", "tolerations", "topologySpreadConstraints"}
	openVolumeFields = []string{"csi", "emptyDir", "ephemeral", "hostPath", "image", "persistentVolumeClaim"}
	openEnvFields    = []string{"fieldRef", "resourceFieldRef"}
)

// refinePodSpec narrows a Revision's spec to what Ebb supports.
func refinePodSpec(spec *node) error {
	if err := narrow(spec, podFields); err != nil {
		return err
	}
	for _, name := range openPodFields {
		if err := open(spec, name); err != nil {
			return err
		}
	}
	for _, name := range openListFields {
		if err := edit(spec, func(list *node) error {
			item := openObject(list.Items.Schema.Description)
			list.Items.Schema = &item
			list.XListType, list.XListMapKeys = nil, nil
			return nil
		}, name); err != nil {
			return err
		}
	}
	spec.Required = []string{"containers"}
	for _, name := range []string{"containerConcurrency", "timeoutSeconds", "responseStartTimeoutSeconds", "idleTimeoutSeconds"} {
		minimum(spec, name, 0)
	}
	if err := edit(spec, listMap("name"), "volumes"); err != nil {
		return err
	}
	if err := edit(spec, listMap("name"), "imagePullSecrets"); err != nil {
		return err
	}
	if err := edit(spec, refineVolume, "volumes", "[]"); err != nil {
		return err
	}
	if err := edit(spec, func(containers *node) error {
		// Names are optional here, so the list cannot be a map of them.
		containers.XListType, containers.XListMapKeys = nil, nil
		least, most := int64(1), int64(maxContainers)
		containers.MinItems, containers.MaxItems = &least, &most
		return refineContainer(containers.Items.Schema)
	}, "containers"); err != nil {
		return err
	}
	shorten(spec, map[string]bool{
		"containerConcurrency": true, "timeoutSeconds": true, "responseStartTimeoutSeconds": true, "idleTimeoutSeconds": true,
	})
	return nil
}

func refineContainer(container *node) error {
	if err := narrow(container, containerFields); err != nil {
		return err
	}
	container.Required = nil
	name := container.Properties["name"]
	length := int64(maxNameLength)
	name.MaxLength = &length
	container.Properties["name"] = name
	if err := rule(container, "!has(self.name) || self.name != 'queue-proxy'",
		"the container name queue-proxy is reserved"); err != nil {
		return err
	}
	return firstError(
		edit(container, listMap("name"), "env"),
		edit(container, func(source *node) error {
			return firstError(narrow(source, envSourceFields), open(source, openEnvFields[0]), open(source, openEnvFields[1]))
		}, "env", "[]", "valueFrom"),
		edit(container, listMap("mountPath"), "volumeMounts"),
		edit(container, func(mount *node) error { return narrow(mount, volumeMountFields) }, "volumeMounts", "[]"),
		edit(container, func(ports *node) error {
			ports.XListType, ports.XListMapKeys = nil, nil
			port := ports.Items.Schema
			port.Required = nil
			if err := narrow(port, portFields); err != nil {
				return err
			}
			protocol := port.Properties["protocol"]
			protocol.Default = &apiextensionsv1.JSON{Raw: []byte(`"TCP"`)}
			port.Properties["protocol"] = protocol
			minimum(port, "containerPort", 0)
			number := port.Properties["containerPort"]
			most := 65535.0
			number.Maximum = &most
			port.Properties["containerPort"] = number
			return nil
		}, "ports"),
		edit(container, func(context *node) error { return narrow(context, securityContextFields) }, "securityContext"),
		edit(container, refineProbe, "livenessProbe"),
		edit(container, refineProbe, "readinessProbe"),
		edit(container, refineProbe, "startupProbe"),
	)
}

// refineProbe keeps a probe's fields; ports are optional, because there is only one to probe.
func refineProbe(probe *node) error {
	if err := narrow(probe, probeFields); err != nil {
		return err
	}
	for _, handler := range []string{"httpGet", "tcpSocket", "grpc"} {
		action := probe.Properties[handler]
		action.Required = nil
		probe.Properties[handler] = action
	}
	return firstError(
		edit(probe, func(action *node) error { return narrow(action, httpGetFields) }, "httpGet"),
		edit(probe, func(action *node) error { return narrow(action, grpcFields) }, "grpc"),
		edit(probe, func(service *node) error {
			service.Default = &apiextensionsv1.JSON{Raw: []byte(`""`)}
			return nil
		}, "grpc", "service"),
	)
}

func refineVolume(volume *node) error {
	if err := narrow(volume, volumeFields); err != nil {
		return err
	}
	volume.Required = []string{"name"}
	for _, name := range openVolumeFields {
		if err := open(volume, name); err != nil {
			return err
		}
	}
	return nil
}

// narrow drops the fields that are not listed. A listed field that is not there is a mistake in the
// list.
func narrow(n *node, fields []string) error {
	for _, name := range fields {
		if _, ok := n.Properties[name]; !ok {
			return fmt.Errorf("the list of fields names %q, which is none", name)
		}
	}
	for name := range n.Properties {
		if !slices.Contains(fields, name) {
			delete(n.Properties, name)
		}
	}
	n.Required = slices.DeleteFunc(n.Required, func(name string) bool { return !slices.Contains(fields, name) })
	return nil
}

// open leaves the inside of an object field to whoever reads it.
func open(n *node, field string) error {
	property, ok := n.Properties[field]
	if !ok {
		return fmt.Errorf("no field %q to open", field)
	}
	n.Properties[field] = openObject(property.Description)
	return nil
}

func openObject(description string) node {
	keep := true
	return node{Type: "object", Description: description, XPreserveUnknownFields: &keep}
}

func listMap(key string) func(*node) error {
	return func(list *node) error {
		kind := "map"
		list.XListType, list.XListMapKeys = &kind, []string{key}
		if !slices.Contains(list.Items.Schema.Required, key) {
			list.Items.Schema.Required = append(list.Items.Schema.Required, key)
		}
		if keyField := list.Items.Schema.Properties[key]; keyField.Default != nil {
			// A key with a default may not be required as well.
			keyField.Default = nil
			list.Items.Schema.Properties[key] = keyField
		}
		return nil
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

const maxDescription = 160

// shorten keeps the first sentence of every description, so that `kubectl explain` says something
// and the definition still fits the annotation in which `kubectl apply` keeps what it applied.
func shorten(n *node, except map[string]bool) {
	for name, property := range n.Properties {
		if except[name] {
			continue
		}
		property.Description = firstSentence(property.Description)
		shorten(&property, nil)
		n.Properties[name] = property
	}
	if n.Items != nil && n.Items.Schema != nil {
		n.Items.Schema.Description = firstSentence(n.Items.Schema.Description)
		shorten(n.Items.Schema, nil)
	}
	if n.AdditionalProperties != nil && n.AdditionalProperties.Schema != nil {
		n.AdditionalProperties.Schema.Description = ""
		shorten(n.AdditionalProperties.Schema, nil)
	}
}

func firstSentence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if i := strings.Index(text, ". "); i >= 0 {
		text = text[:i+1]
	}
	if len(text) > maxDescription {
		return ""
	}
	return text
}

// describeStandardFields replaces the long standard texts of apiVersion and kind.
func describeStandardFields(root *node) {
	for name, text := range map[string]string{
		"apiVersion": "The group and version of this kind.",
		"kind":       "The kind.",
	} {
		field := root.Properties[name]
		field.Description = text
		root.Properties[name] = field
	}
}
