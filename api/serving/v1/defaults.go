package v1

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
)

// SetDefaults fills what the Service leaves open and records who writes it.
func (s *Service) SetDefaults(req rules.Request[Service]) {
	var old *ConfigurationSpec
	var oldMeta *metav1.ObjectMeta
	if req.Old != nil {
		old, oldMeta = &req.Old.Spec.ConfigurationSpec, &req.Old.ObjectMeta
	}
	s.Spec.Template.setDefaults(req.Config, s.ObjectMeta, templateOf(old))
	if len(s.Spec.Traffic) == 0 {
		s.Spec.Traffic = []TrafficTarget{{Percent: new(int64(100)), LatestRevision: new(true)}}
	}
	setTrafficDefaults(s.Spec.Traffic)
	SetUserInfo(&s.ObjectMeta, oldMeta, req.User, func() bool { return equality.Semantic.DeepEqual(s.Spec, req.Old.Spec) })
}

// SetDefaults fills what the Configuration leaves open and records who writes it.
func (c *Configuration) SetDefaults(req rules.Request[Configuration]) {
	var old *ConfigurationSpec
	var oldMeta *metav1.ObjectMeta
	if req.Old != nil {
		old, oldMeta = &req.Old.Spec, &req.Old.ObjectMeta
	}
	c.Spec.Template.setDefaults(req.Config, c.ObjectMeta, templateOf(old))
	SetUserInfo(&c.ObjectMeta, oldMeta, req.User, func() bool { return equality.Semantic.DeepEqual(c.Spec, req.Old.Spec) })
}

// SetDefaults fills what the Revision leaves open. A stored one never changes.
func (r *Revision) SetDefaults(req rules.Request[Revision]) {
	if req.Old == nil {
		r.Spec.setDefaults(req.Config, r.ObjectMeta, nil)
	}
}

// SetDefaults fills what the Route leaves open and records who writes it. A Route without traffic
// stays so.
func (r *Route) SetDefaults(req rules.Request[Route]) {
	setTrafficDefaults(r.Spec.Traffic)
	var oldMeta *metav1.ObjectMeta
	if req.Old != nil {
		oldMeta = &req.Old.ObjectMeta
	}
	SetUserInfo(&r.ObjectMeta, oldMeta, req.User, func() bool { return equality.Semantic.DeepEqual(r.Spec, req.Old.Spec) })
}

// SetUserInfo records in a new object who made it, and in a changed one who changed it. Objects
// with an owner get both from their owner. specUnchanged is asked only when there is an old object.
func SetUserInfo(meta, old *metav1.ObjectMeta, user string, specUnchanged func() bool) {
	if user == "" || len(meta.OwnerReferences) > 0 {
		return
	}
	set := func(key, value string) {
		if meta.Annotations == nil {
			meta.Annotations = map[string]string{}
		}
		meta.Annotations[key] = value
	}
	if old == nil {
		set(names.CreatorAnnotation, user)
		set(names.LastModifierAnnotation, user)
		return
	}
	// What Ebb wrote stays, whatever a manifest says: an export has the names of another cluster.
	for _, key := range []string{names.CreatorAnnotation, names.LastModifierAnnotation} {
		if stored, known := old.Annotations[key]; known {
			set(key, stored)
		} else {
			delete(meta.Annotations, key)
		}
	}
	if !specUnchanged() {
		set(names.LastModifierAnnotation, user)
	}
}

func templateOf(spec *ConfigurationSpec) *RevisionTemplateSpec {
	if spec == nil {
		return nil
	}
	return &spec.Template
}

func setTrafficDefaults(targets []TrafficTarget) {
	for i := range targets {
		target := &targets[i]
		if target.LatestRevision == nil {
			target.LatestRevision = new(target.RevisionName == "")
		}
		if target.Percent == nil {
			target.Percent = new(int64(0))
		}
	}
}

func (t *RevisionTemplateSpec) setDefaults(config *rules.Config, parent metav1.ObjectMeta, old *RevisionTemplateSpec) {
	// A template whose name the user keeps must not change, not even by new defaults: the name
	// would be taken. A manifest applied again comes without the old defaults, because patches
	// replace lists as a whole; it is the stored template when the defaults are all that it lacks.
	if old != nil && t.Name != "" && t.Name == old.Name {
		again := t.DeepCopy()
		again.Spec.setDefaults(config, parent, nil)
		if equality.Semantic.DeepEqual(again, old) {
			old.DeepCopyInto(t)
		}
		return
	}
	if old == nil {
		t.Spec.setDefaults(config, parent, nil)
	} else {
		t.Spec.setDefaults(config, parent, &old.Spec)
	}
}

func (rs *RevisionSpec) setDefaults(config *rules.Config, meta metav1.ObjectMeta, old *RevisionSpec) {
	d := &config.Defaults
	if rs.TimeoutSeconds == nil || *rs.TimeoutSeconds == 0 {
		rs.TimeoutSeconds = new(d.TimeoutSeconds)
	}
	if t := d.ResponseStartTimeoutSeconds; rs.ResponseStartTimeoutSeconds == nil && t != 0 && t < *rs.TimeoutSeconds {
		rs.ResponseStartTimeoutSeconds = &t
	}
	if t := d.IdleTimeoutSeconds; rs.IdleTimeoutSeconds == nil && t != 0 && t < *rs.TimeoutSeconds {
		rs.IdleTimeoutSeconds = &t
	}
	if rs.ContainerConcurrency == nil {
		rs.ContainerConcurrency = new(d.ContainerConcurrency)
	}
	// A stored template from before these defaults stays without, or there would be a new revision.
	// One that got them keeps them, whether the manifest is applied again or replaced.
	if old == nil || ptr.Equal(old.EnableServiceLinks, d.EnableServiceLinks) {
		fill(&rs.EnableServiceLinks, d.EnableServiceLinks)
	}
	if old == nil || ptr.Equal(old.AutomountServiceAccountToken, d.AutomountServiceAccountToken) {
		fill(&rs.AutomountServiceAccountToken, d.AutomountServiceAccountToken)
	}
	used := map[string]bool{}
	for _, list := range [][]corev1.Container{rs.Containers, rs.InitContainers} {
		for i := range list {
			used[list[i].Name] = true
		}
	}
	nameContainers(rs.Containers, used, d.ContainerNameTemplate, "user-container", meta)
	nameContainers(rs.InitContainers, used, d.InitContainerNameTemplate, "init-container", meta)

	writable := map[string]bool{}
	for _, volume := range rs.Volumes {
		writable[volume.Name] = volume.EmptyDir != nil || volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil
	}
	serving := rs.ServingContainer()
	for i := range rs.Containers {
		c := &rs.Containers[i]
		rs.setContainerDefaults(c, config, writable)
		if c == serving {
			setReadinessDefaults(c)
		} else if c.ReadinessProbe != nil {
			setThresholdDefaults(c.ReadinessProbe)
		}
	}
	for i := range rs.InitContainers {
		rs.setContainerDefaults(&rs.InitContainers[i], config, writable)
	}
}

func fill(field **bool, value *bool) {
	if *field == nil && value != nil {
		*field = new(*value)
	}
}

// nameContainers names the containers that have no name. One alone is named by the template; one of
// several, or one whose name is in use, gets the first free number behind it.
func nameContainers(list []corev1.Container, used map[string]bool, t rules.Template, fallback string, meta metav1.ObjectMeta) {
	base, err := t.Expand(meta)
	if err != nil || base == "" {
		base = fallback
	}
	number := 0
	for i := range list {
		if list[i].Name != "" {
			continue
		}
		name := base
		if len(list) > 1 || used[base] {
			for {
				name = base + "-" + strconv.Itoa(number)
				number++
				if !used[name] {
					break
				}
			}
		}
		used[name] = true
		list[i].Name = name
	}
}

func (rs *RevisionSpec) setContainerDefaults(c *corev1.Container, config *rules.Config, writable map[string]bool) {
	setResourceDefaults(&c.Resources.Requests, config.Defaults.Requests)
	setResourceDefaults(&c.Resources.Limits, config.Defaults.Limits)
	for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
		if probe != nil && probe.GRPC != nil && probe.GRPC.Service == nil {
			probe.GRPC.Service = new("")
		}
	}
	for i := range c.VolumeMounts {
		if !writable[c.VolumeMounts[i].Name] {
			c.VolumeMounts[i].ReadOnly = true
		}
	}
	rs.setSecurityDefaults(c, config.Features[rules.KeySecurePodDefaults])
}

func setResourceDefaults(list *corev1.ResourceList, defaults corev1.ResourceList) {
	for name, quantity := range defaults {
		if _, ok := (*list)[name]; ok {
			continue
		}
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = quantity.DeepCopy()
	}
}

// setReadinessDefaults makes queue-proxy try the port of a container that says nothing of how to
// tell its readiness.
func setReadinessDefaults(c *corev1.Container) {
	if c.ReadinessProbe == nil {
		c.ReadinessProbe = &corev1.Probe{}
	}
	p := c.ReadinessProbe
	if p.TCPSocket == nil && p.HTTPGet == nil && p.Exec == nil && p.GRPC == nil {
		p.TCPSocket = &corev1.TCPSocketAction{}
	}
	setThresholdDefaults(p)
}

func setThresholdDefaults(p *corev1.Probe) {
	if p.SuccessThreshold == 0 {
		p.SuccessThreshold = 1
	}
	// Without a period queue-proxy tries as often as it can; Kubernetes' thresholds mean nothing
	// then.
	if p.PeriodSeconds != 0 {
		if p.FailureThreshold == 0 {
			p.FailureThreshold = 3
		}
		if p.TimeoutSeconds == 0 {
			p.TimeoutSeconds = 1
		}
	}
}

// setSecurityDefaults restricts a container as flag secure-pod-defaults asks; what the user sets,
// even to something empty, stays.
func (rs *RevisionSpec) setSecurityDefaults(c *corev1.Container, flag rules.Flag) {
	if flag != rules.Enabled && flag != rules.AllowRootBounded {
		return
	}
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	pod, own := rs.SecurityContext, c.SecurityContext
	if own.AllowPrivilegeEscalation == nil {
		own.AllowPrivilegeEscalation = new(false)
	}
	if own.SeccompProfile == nil && (pod == nil || pod.SeccompProfile == nil) {
		own.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	if own.Capabilities == nil {
		own.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
		for _, port := range c.Ports {
			if port.ContainerPort > 0 && port.ContainerPort < 1024 {
				own.Capabilities.Add = []corev1.Capability{"NET_BIND_SERVICE"}
			}
		}
	}
	if flag == rules.Enabled && own.RunAsNonRoot == nil && (pod == nil || pod.RunAsNonRoot == nil) {
		own.RunAsNonRoot = new(true)
	}
}
