package manifests

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

const root = "../.."

// apart are the directories of config/ that are installed separately, because not every cluster has
// their kinds.
var apart = []string{"certmanager", "istio", "kserve", "monitoring", "monitoring/knative-1.18"}

// optional are the directories of config/ that not everybody wants. They are held to the same
// rules.
var optional = []string{"courier", "dashboard"}

func config(t *testing.T) []Object {
	t.Helper()
	var all []string
	for _, folder := range append([]string{"."}, optional...) {
		files, err := Files(filepath.Join(root, "config", folder))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	return read(t, all)
}

func read(t *testing.T, files []string) []Object {
	t.Helper()
	decoder, err := NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decoder.ReadAll(files)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func yamlFiles(t *testing.T, folder string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".yaml" && entry.Name() != kustomizationFile {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// onItsOwn are the directories of config/ that have their own kustomization, because not every
// cluster supports them.
var onItsOwn = []string{"certmanager"}

func TestEveryFileOfConfigIsInstalled(t *testing.T) {
	var installed []string
	for _, folder := range append([]string{"."}, slices.Concat(onItsOwn, optional)...) {
		files, err := Files(filepath.Join(root, "config", folder))
		if err != nil {
			t.Fatal(err)
		}
		installed = append(installed, files...)
	}
	for _, folder := range apart {
		more, err := Files(filepath.Join(root, "config", folder))
		if err != nil {
			t.Fatal(err)
		}
		installed = append(installed, more...)
	}
	// These change the others; dev/ctl's tests render them.
	changes := []string{filepath.Join(root, "config", "ha"), filepath.Join(root, "config", "edge"), filepath.Join(root, "config", "envoy-gateway")}
	for _, file := range yamlFiles(t, filepath.Join(root, "config")) {
		if !slices.Contains(installed, file) && !slices.Contains(changes, filepath.Dir(file)) {
			t.Errorf("no kustomization reachable from config/, or in %v, names %s", apart, file)
		}
	}
}

func TestEveryObjectOfConfigIsThereOnceAndDecodesStrictly(t *testing.T) {
	seen := map[string]string{}
	for _, object := range config(t) {
		accessor, err := meta.Accessor(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		id := strings.Join([]string{object.GetObjectKind().GroupVersionKind().GroupKind().String(), accessor.GetNamespace(), accessor.GetName()}, " ")
		if first, twice := seen[id]; twice {
			t.Errorf("%s is in %s and in %s", id, first, object.File)
		}
		seen[id] = object.File
	}
}

func TestEveryImageIsOneThatThisRepositoryBuilds(t *testing.T) {
	check := func(file, image string) {
		folder, ours := strings.CutPrefix(image, "ko://ebb.dev/ebb/")
		if !ours {
			t.Errorf("%s names the image %q, want ko://ebb.dev/ebb/<component>", file, image)
			return
		}
		if _, err := os.Stat(filepath.Join(root, folder, "main.go")); err != nil {
			t.Errorf("%s names the image %q, but %s is not a program", file, image, folder)
		}
	}
	for _, object := range config(t) {
		if _, pod := component(object); pod != nil {
			for _, container := range pod.Containers {
				check(object.File, container.Image)
			}
		}
		if o, ok := object.Object.(*corev1.ConfigMap); ok && o.Name == "config-deployment" {
			check(object.File, o.Data["queue-sidecar-image"])
			check(object.File, o.Data["shim-image"])
		}
	}
}

// component returns a component's name and its pods, nil for any other object.
func component(object Object) (name string, pod *corev1.PodSpec) {
	switch o := object.Object.(type) {
	case *appsv1.Deployment:
		return o.Name, &o.Spec.Template.Spec
	case *appsv1.DaemonSet:
		return o.Name, &o.Spec.Template.Spec
	case *appsv1.StatefulSet:
		return o.Name, &o.Spec.Template.Spec
	}
	return "", nil
}

// serving returns the pods of a component that others connect to, nil for any other object.
func serving(object Object) *corev1.PodTemplateSpec {
	switch o := object.Object.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	}
	return nil
}

// The node agent needs root and files of the node; the kubelet cannot probe what its guard watches.
func TestComponentsRunRestricted(t *testing.T) {
	for _, object := range config(t) {
		component, pod := component(object)
		if pod == nil {
			continue
		}
		agent := component == "node-agent"
		for _, c := range pod.Containers {
			name := component + "/" + c.Name
			s := c.SecurityContext
			if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !agent && (s.RunAsNonRoot == nil || !*s.RunAsNonRoot) ||
				s.Privileged != nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
				s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: container %s does not meet the restricted pod security standard", object.File, name)
			}
			if c.ReadinessProbe == nil && !agent {
				t.Errorf("%s: container %s has no readiness probe", object.File, name)
			}
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: container %s lacks a CPU request, a memory request or a memory limit", object.File, name)
			}
		}
	}
}

// The kubelet puts in an IPv6 address without brackets.
func TestComponentsListenAtIPv6Addresses(t *testing.T) {
	for _, object := range config(t) {
		component, pod := component(object)
		if pod == nil {
			continue
		}
		for _, c := range pod.Containers {
			for _, e := range c.Env {
				for _, ip := range []string{"$(NODE_IP)", "$(POD_IP)"} {
					if !strings.Contains(e.Value, ip) {
						continue
					}
					if _, _, err := net.SplitHostPort(strings.ReplaceAll(e.Value, ip, "fd00::1")); err != nil {
						t.Errorf("%s: %s of %s is %q: %v", object.File, e.Name, component, e.Value, err)
					}
				}
			}
		}
	}
}

// A full disk stops no component, because none can write to one: the root file system is read-only
// (TestComponentsRunRestricted), and all volumes are. Only the courier has a disk; store-bytes of
// config-courier bounds what it writes, and TestAFullDiskRefusesCallsAndLosesNone fills it.
func TestNoComponentHasADiskToFill(t *testing.T) {
	for _, object := range config(t) {
		name, pod := component(object)
		if pod == nil {
			continue
		}
		for _, v := range pod.Volumes {
			kernel := v.HostPath != nil && v.HostPath.Path == "/sys/fs/cgroup" || v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory && v.EmptyDir.SizeLimit != nil
			if v.Secret == nil && v.ConfigMap == nil && v.Projected == nil && v.DownwardAPI == nil && !kernel {
				t.Errorf("%s: volume %s of %s can be written to", object.File, v.Name, name)
			}
		}
	}
}

func TestServicesOfConfigReachPortsOfADeployment(t *testing.T) {
	objects := config(t)
	for _, object := range objects {
		service, ok := object.Object.(*corev1.Service)
		if !ok || len(service.Spec.Selector) == 0 || len(service.Spec.Ports) == 0 { // one without ports lists addresses alone
			continue
		}
		selector := labels.SelectorFromSet(service.Spec.Selector)
		var ports []corev1.ContainerPort
		found := false
		for _, other := range objects {
			template := serving(other)
			if template != nil && selector.Matches(labels.Set(template.Labels)) {
				found = true
				for _, container := range template.Spec.Containers {
					ports = append(ports, container.Ports...)
				}
			}
		}
		if !found {
			t.Errorf("%s: Service %s selects no Deployment's pods", object.File, service.Name)
			continue
		}
		for _, port := range service.Spec.Ports {
			target := port.TargetPort
			if target == (intstr.IntOrString{}) {
				target = intstr.FromInt32(port.Port)
			}
			if !slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool {
				return target.Type == intstr.Int && p.ContainerPort == target.IntVal || target.Type == intstr.String && p.Name == target.StrVal
			}) {
				t.Errorf("%s: Service %s sends port %d to %s, which no container declares", object.File, service.Name, port.Port, target.String())
			}
		}
	}
}

func TestBindingsNameRolesAndAccountsThatExist(t *testing.T) {
	accounts := map[string]bool{}
	// Kubernetes makes this one itself.
	roles := map[string]bool{"Role kube-system/extension-apiserver-authentication-reader": true}
	objects := config(t)
	for _, object := range objects {
		switch o := object.Object.(type) {
		case *corev1.ServiceAccount:
			accounts[o.Namespace+"/"+o.Name] = true
		case *rbacv1.ClusterRole:
			roles["ClusterRole "+o.Name] = true
		case *rbacv1.Role:
			roles["Role "+o.Namespace+"/"+o.Name] = true
		}
	}
	check := func(file, namespace string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		name := ref.Kind + " " + ref.Name
		if ref.Kind == "Role" {
			name = "Role " + namespace + "/" + ref.Name
		}
		if !roles[name] {
			t.Errorf("%s binds %s, which is not in config/", file, name)
		}
		for _, subject := range subjects {
			if subject.Kind != "ServiceAccount" || !accounts[subject.Namespace+"/"+subject.Name] {
				t.Errorf("%s binds to %s %s/%s, which is not in config/", file, subject.Kind, subject.Namespace, subject.Name)
			}
		}
	}
	for _, object := range objects {
		switch o := object.Object.(type) {
		case *rbacv1.ClusterRoleBinding:
			check(object.File, "", o.RoleRef, o.Subjects)
		case *rbacv1.RoleBinding:
			check(object.File, o.Namespace, o.RoleRef, o.Subjects)
		}
		if name, pod := component(object); pod != nil && !accounts["knative-serving/"+pod.ServiceAccountName] {
			t.Errorf("%s: %s runs as %s, which is not in config/", object.File, name, pod.ServiceAccountName)
		}
	}
}

var sampleImage = regexp.MustCompile(`^dev\.local/ebb/([a-z-]+):dev$`)

func TestSamplesDecodeStrictlyAndNameImagesOfSamples(t *testing.T) {
	files := yamlFiles(t, filepath.Join(root, "samples"))
	for _, object := range read(t, files) {
		service, ok := object.Object.(*servingv1.Service)
		if !ok {
			continue
		}
		for _, container := range service.Spec.Template.Spec.Containers {
			match := sampleImage.FindStringSubmatch(container.Image)
			if match == nil {
				t.Errorf("%s names the image %q, want dev.local/ebb/<sample>:dev", object.File, container.Image)
				continue
			}
			if _, err := os.Stat(filepath.Join(root, "samples", match[1])); err != nil {
				t.Errorf("%s names the image %q of a sample that does not exist", object.File, container.Image)
			}
		}
	}
}

// What enters an image from a registry is named by its digest, so that nobody who pushes there
// changes what is built here. Debian's packages are signed.
func TestWhatEntersAnImageIsNamedByItsDigest(t *testing.T) {
	digest := regexp.MustCompile(`sha256:[0-9a-f]{64}( |$)`)
	found := 0
	for pattern, of := range map[string]string{".ko.yaml": "defaultBaseImage:", "samples/*/Dockerfile": "FROM ", "samples/*/requirements.txt": "",
		"test/internal/envoy/requirements.txt": ""} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") || !strings.HasPrefix(line, of) {
					continue
				}
				found++
				if !digest.MatchString(line) {
					t.Errorf("%s: %s", file, line)
				}
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d lines name something", found)
	}
}
