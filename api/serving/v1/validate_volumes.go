package v1

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
)

// volumeSources lists the sources that a volume may have, in the order of the messages.
var volumeSources = []string{"secret", "configMap", "projected", "emptyDir", "persistentVolumeClaim", "ephemeral", "csi", "hostPath", "image"}

// validateVolumes checks the volumes and returns them by name.
func validateVolumes(list []corev1.Volume, f rules.Features) (map[string]*corev1.Volume, *apis.FieldError) {
	var errs *apis.FieldError
	volumes := map[string]*corev1.Volume{}
	for i := range list {
		v := &list[i]
		if _, ok := volumes[v.Name]; ok {
			errs = errs.Also((&apis.FieldError{
				Message: fmt.Sprintf("duplicate volume name %q", v.Name), Paths: []string{"name"},
			}).ViaFieldIndex("volumes", i))
		}
		errs = errs.Also(validateVolume(v, f).ViaFieldIndex("volumes", i))
		volumes[v.Name] = v
	}
	return volumes, errs
}

func validateVolume(v *corev1.Volume, f rules.Features) (errs *apis.FieldError) {
	if v.Name == "" {
		errs = apis.ErrMissingField("name")
	} else {
		errs = invalid(v.Name, "name", validation.IsDNS1123Label(v.Name))
	}
	var given []string
	add := func(set bool, name string) bool {
		if set {
			given = append(given, name)
		}
		return set
	}
	require := func(set bool, name string, key rules.FlagKey) {
		if add(set, name) && !f.Enabled(key) {
			errs = errs.Also(needsFlag(key, name))
		}
	}
	if add(v.Secret != nil, "secret") {
		errs = errs.Also(validateItems(v.Secret.SecretName, "secretName", v.Secret.Items).Also(validateMode(v.Secret.DefaultMode, "defaultMode")).ViaField("secret"))
	}
	if add(v.ConfigMap != nil, "configMap") {
		errs = errs.Also(validateItems(v.ConfigMap.Name, "name", v.ConfigMap.Items).Also(validateMode(v.ConfigMap.DefaultMode, "defaultMode")).ViaField("configMap"))
	}
	if add(v.Projected != nil, "projected") {
		errs = errs.Also(validateMode(v.Projected.DefaultMode, "defaultMode").ViaField("projected"))
		files := sets.New[string]()
		for i := range v.Projected.Sources {
			errs = errs.Also(validateProjection(&v.Projected.Sources[i], files).ViaFieldIndex("sources", i).ViaField("projected"))
		}
	}
	require(v.EmptyDir != nil, "emptyDir", rules.KeyPodSpecVolumesEmptyDir)
	require(v.PersistentVolumeClaim != nil, "persistentVolumeClaim", rules.KeyPodSpecPersistentVolumeClaim)
	require(v.Ephemeral != nil, "ephemeral", rules.KeyPodSpecVolumesEphemeral)
	require(v.CSI != nil, "csi", rules.KeyPodSpecVolumesCSI)
	require(v.HostPath != nil, "hostPath", rules.KeyPodSpecVolumesHostPath)
	require(v.Image != nil, "image", rules.KeyPodSpecVolumesImage)
	if e := v.EmptyDir; e != nil && e.SizeLimit != nil && e.SizeLimit.Sign() < 0 {
		errs = errs.Also(apis.ErrInvalidValue(e.SizeLimit.String(), "emptyDir.sizeLimit", "must not be negative"))
	}
	if claim := v.PersistentVolumeClaim; claim != nil {
		errs = errs.Also(validateClaim(claim, f))
	}
	switch {
	case len(given) == 0:
		other := apis.CheckDisallowedFields(v.VolumeSource, corev1.VolumeSource{})
		if other == nil {
			other = apis.ErrMissingOneOf(volumeSources...)
		} else {
			other.Details = "a volume is one of " + strings.Join(volumeSources, ", ") + "; other storage is mounted by a persistentVolumeClaim"
		}
		errs = errs.Also(other)
	case len(given) > 1:
		errs = errs.Also(apis.ErrMultipleOneOf(given...))
	}
	return errs
}

func validateClaim(claim *corev1.PersistentVolumeClaimVolumeSource, f rules.Features) (errs *apis.FieldError) {
	if claim.ClaimName == "" {
		errs = apis.ErrMissingField("persistentVolumeClaim.claimName")
	}
	if !claim.ReadOnly && !f.Enabled(rules.KeyPodSpecPersistentVolumeWrite) {
		errs = errs.Also(&apis.FieldError{
			Message: fmt.Sprintf("Persistent volume write support is disabled, but found persistent volume claim %s that is not read-only", claim.ClaimName),
			Paths:   []string{"persistentVolumeClaim.readOnly"},
			Details: howToSet(rules.KeyPodSpecPersistentVolumeWrite),
		})
	}
	return errs
}

func validateItems(name, field string, items []corev1.KeyToPath) (errs *apis.FieldError) {
	if name == "" {
		errs = errs.Also(apis.ErrMissingField(field))
	}
	for i, item := range items {
		if item.Key == "" {
			errs = errs.Also(apis.ErrMissingField("key").ViaFieldIndex("items", i))
		}
		errs = errs.Also(validateFile(item.Path, item.Mode).ViaFieldIndex("items", i))
	}
	return errs
}

// validateProjection checks a source of a volume whose other sources have these files.
func validateProjection(p *corev1.VolumeProjection, files sets.Set[string]) (errs *apis.FieldError) {
	var given []string
	unique := func(file string) *apis.FieldError {
		if file != "" && files.Has(file) {
			return apis.ErrInvalidValue(file, "path", "must be unique in the volume")
		}
		files.Insert(file)
		return nil
	}
	if p.Secret != nil {
		given = append(given, "secret")
		for i, item := range p.Secret.Items {
			errs = errs.Also(unique(item.Path).ViaFieldIndex("items", i).ViaField("secret"))
		}
		errs = errs.Also(validateItems(p.Secret.Name, "name", p.Secret.Items).ViaField("secret"))
	}
	if p.ConfigMap != nil {
		given = append(given, "configMap")
		for i, item := range p.ConfigMap.Items {
			errs = errs.Also(unique(item.Path).ViaFieldIndex("items", i).ViaField("configMap"))
		}
		errs = errs.Also(validateItems(p.ConfigMap.Name, "name", p.ConfigMap.Items).ViaField("configMap"))
	}
	if p.ServiceAccountToken != nil {
		given = append(given, "serviceAccountToken")
		errs = errs.Also(validateFile(p.ServiceAccountToken.Path, nil).ViaField("serviceAccountToken"))
		if seconds := p.ServiceAccountToken.ExpirationSeconds; seconds != nil && (*seconds < 600 || *seconds > 1<<32) {
			errs = errs.Also(apis.ErrOutOfBoundsValue(*seconds, 600, 1<<32, "serviceAccountToken.expirationSeconds"))
		}
	}
	if p.DownwardAPI != nil {
		given = append(given, "downwardAPI")
		for i, item := range p.DownwardAPI.Items {
			errs = errs.Also(validateFile(item.Path, item.Mode).Also(unique(item.Path), validateFileRef(&item)).
				ViaFieldIndex("items", i).ViaField("downwardAPI"))
			if (item.FieldRef == nil) == (item.ResourceFieldRef == nil) {
				errs = errs.Also(exactlyOne(item.FieldRef != nil, "fieldRef", "resourceFieldRef").
					ViaFieldIndex("items", i).ViaField("downwardAPI"))
			}
		}
	}
	switch len(given) {
	case 0:
		errs = errs.Also(apis.ErrMissingOneOf("secret", "configMap", "serviceAccountToken", "downwardAPI"))
	case 1:
	default:
		errs = errs.Also(apis.ErrMultipleOneOf(given...))
	}
	return errs.Also(apis.CheckDisallowedFields(*p, corev1.VolumeProjection{
		Secret: p.Secret, ConfigMap: p.ConfigMap, ServiceAccountToken: p.ServiceAccountToken, DownwardAPI: p.DownwardAPI,
	}))
}

func validateFileRef(item *corev1.DownwardAPIVolumeFile) (errs *apis.FieldError) {
	if ref := item.FieldRef; ref != nil && ref.FieldPath == "" {
		errs = errs.Also(apis.ErrMissingField("fieldRef.fieldPath"))
	}
	if ref := item.ResourceFieldRef; ref != nil && ref.Resource == "" {
		errs = errs.Also(apis.ErrMissingField("resourceFieldRef.resource"))
	}
	if ref := item.ResourceFieldRef; ref != nil && ref.ContainerName == "" {
		errs = errs.Also(apis.ErrMissingField("resourceFieldRef.containerName"))
	}
	return errs
}

// exactlyOne is the error when both or none of two fields are set.
func exactlyOne(both bool, fields ...string) *apis.FieldError {
	if both {
		return apis.ErrMultipleOneOf(fields...)
	}
	return apis.ErrMissingOneOf(fields...)
}

// reservedPaths are where nothing may be mounted.
var reservedPaths = sets.New("/", "/dev", "/dev/log")

func (v *containerCheck) validateVolumeMounts() (errs *apis.FieldError) {
	paths := sets.New[string]()
	for i := range v.c.VolumeMounts {
		m := &v.c.VolumeMounts[i]
		errs = errs.Also(v.validateVolumeMount(m, paths).ViaFieldIndex("volumeMounts", i))
		v.mounted.Insert(m.Name)
	}
	return errs
}

func (v *containerCheck) validateVolumeMount(m *corev1.VolumeMount, paths sets.Set[string]) (errs *apis.FieldError) {
	errs = errs.Also(apis.CheckDisallowedFields(*m, corev1.VolumeMount{
		Name: m.Name, ReadOnly: m.ReadOnly, MountPath: m.MountPath, SubPath: m.SubPath, MountPropagation: m.MountPropagation,
	}))
	volume := v.volumes[m.Name]
	switch {
	case m.Name == "":
		errs = errs.Also(apis.ErrMissingField("name"))
	case volume == nil:
		errs = errs.Also(&apis.FieldError{Message: "volumeMount has no matching volume", Paths: []string{"name"}})
	case !m.ReadOnly && volume.EmptyDir == nil && volume.PersistentVolumeClaim == nil && volume.Ephemeral == nil && volume.CSI == nil && volume.HostPath == nil:
		err := apis.ErrMissingField("readOnly")
		err.Details = "volumes of this kind cannot be written to"
		errs = errs.Also(err)
	}
	errs = errs.Also(invalid(m.SubPath, "subPath", descends(m.SubPath)))
	clean := path.Clean(m.MountPath)
	switch {
	case m.MountPath == "":
		errs = errs.Also(apis.ErrMissingField("mountPath"))
	case !path.IsAbs(m.MountPath):
		errs = errs.Also(apis.ErrInvalidValue(m.MountPath, "mountPath", "must be absolute"))
	case reservedPaths.Has(clean):
		errs = errs.Also(&apis.FieldError{Message: fmt.Sprintf("mountPath %q is a reserved path", clean), Paths: []string{"mountPath"}})
	case paths.Has(clean):
		errs = errs.Also(apis.ErrInvalidValue(fmt.Sprintf("%q must be unique", m.MountPath), "mountPath"))
	}
	paths.Insert(clean)
	if p := m.MountPropagation; p != nil {
		switch {
		case !v.f.Allowed(rules.KeyPodSpecVolumesMountPropagation):
			errs = errs.Also(needsFlag(rules.KeyPodSpecVolumesMountPropagation, "mountPropagation"))
		case *p != corev1.MountPropagationNone && *p != corev1.MountPropagationHostToContainer:
			errs = errs.Also(apis.ErrInvalidValue(*p, "mountPropagation", "must be None or HostToContainer"))
		}
	}
	return errs
}
