// Package settings turns the config-* ConfigMaps of the system namespace into one immutable
// Snapshot.
//
// Owns: the meaning, default and bounds of every key; keys.go lists them. Reads: ConfigMap data,
// either handed in (Parse, ParseOne: pure) or watched (Watch). Writes: the Store it is given,
// nothing else. Never: a half-applied map, a default that differs from the shipped YAML
// (config/core/configmaps is generated from keys.go and tested against Default), or an answer that
// needs a restart.
package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"ebb.dev/ebb/api/rules"
)

// The ConfigMaps this package knows.
const (
	AutoscalerName     = "config-autoscaler"
	DefaultsName       = "config-defaults"
	DeploymentName     = "config-deployment"
	DomainName         = "config-domain"
	FeaturesName       = "config-features"
	GCName             = "config-gc"
	NetworkName        = "config-network"
	ObservabilityName  = "config-observability"
	TracingName        = "config-tracing"
	LoggingName        = "config-logging"
	LeaderElectionName = "config-leader-election"
	CertManagerName    = "config-certmanager"
	GatewayName        = "config-gateway"
	CourierName        = "config-courier"
)

// Snapshot is the settings of one moment. It is never changed after Parse returned it: readers may
// keep it for the length of one decision and must not write to its maps and slices.
type Snapshot struct {
	Autoscaler     Autoscaler
	Defaults       Defaults
	Deployment     Deployment
	Domain         Domain
	Features       rules.Features
	GC             GC
	Network        Network
	Observability  Observability
	Logging        Logging
	LeaderElection LeaderElection
	CertManager    CertManager
	Gateway        Gateway
	Courier        Courier
}

// Known reports whether name is a ConfigMap this package reads.
func Known(name string) bool { return slices.Contains(configMaps, name) }

// configMaps lists every ConfigMap that this package reads, sorted.
var configMaps = func() []string {
	var all []string
	for _, one := range sections(&Snapshot{}) {
		all = append(all, one.name)
	}
	slices.Sort(all)
	return all
}()

// Default is the Snapshot of an installation without ConfigMaps.
func Default() *Snapshot {
	s, err := Parse(nil)
	if err != nil {
		panic(err) // a default in the table of keys is not legal; every test fails
	}
	return s
}

// Parse reads a whole set of ConfigMaps, keyed by name. A missing map means its defaults; an
// unknown map is ignored. All faults of all maps are reported at once, each with map, key and
// reason; then no Snapshot is returned.
func Parse(given map[string]map[string]string) (*Snapshot, error) {
	s := &Snapshot{}
	faults := map[string][]error{}
	for _, one := range sections(s) {
		faults[one.name] = one.read(given[one.name])
	}
	var all []error
	for _, name := range configMaps {
		all = append(all, faults[name]...)
	}
	if err := errors.Join(all...); err != nil {
		return nil, err
	}
	return s, nil
}

// ParseOne tells whether data would be accepted as the content of the ConfigMap name; the webhook
// asks it before the change is stored. A map this package does not know is accepted.
func ParseOne(name string, data map[string]string) error {
	if data == nil {
		data = map[string]string{} // the map exists
	}
	for _, one := range sections(&Snapshot{}) {
		if one.name == name {
			return errors.Join(one.read(data)...)
		}
	}
	return nil
}

// reader is one ConfigMap while it is read, and what is wrong with it.
type reader struct {
	*section
	data   map[string]string // nil when the ConfigMap does not exist
	faults []error
}

// read sets every key of the section, to its default if data does not have it.
func (one *section) read(data map[string]string) []error {
	r := &reader{section: one, data: data}
	for i := range one.keys {
		k := &one.keys[i]
		if k.each != nil {
			r.readEach(k)
			continue
		}
		if k.Default != "" {
			if err := k.set(k.Default); err != nil {
				r.fault(k.name, k.Default, "the default: %v", err)
			}
		}
		text, name, given := k.lookup(data)
		if !given || text == "" && k.blank {
			continue
		}
		if err := k.set(text); err != nil {
			r.fault(name, text, "%v", err)
		}
	}
	if one.check != nil {
		one.check(r)
	}
	return r.faults
}

// readEach sets every key of data that matches a pattern.
func (r *reader) readEach(k *key) {
	for _, name := range slices.Sorted(maps.Keys(r.data)) {
		if wildcard, ok := k.match(name); ok && name != ExampleKey {
			if err := k.each(wildcard, strings.TrimSpace(r.data[name])); err != nil {
				r.fault(name, r.data[name], "%v", err)
			}
		}
	}
}

// has reports whether the ConfigMap sets a key to something.
func (r *reader) has(key string) bool { return strings.TrimSpace(r.data[key]) != "" }

func (r *reader) fault(key, value, format string, args ...any) {
	r.faults = append(r.faults, &KeyError{ConfigMap: r.name, Key: key, Value: value, Reason: fmt.Sprintf(format, args...)})
}

// lookup finds the key under its name or, failing that, a legacy one.
func (k *key) lookup(data map[string]string) (text, found string, ok bool) {
	for _, name := range append([]string{k.name}, k.legacy...) {
		if v, ok := data[name]; ok {
			return strings.TrimSpace(v), name, true
		}
	}
	return "", k.name, false
}

// match reports whether a name in a ConfigMap is this key, and what stands for its wildcard.
func (k *key) match(name string) (wildcard string, ok bool) {
	before, after, isPattern := strings.Cut(k.name, "<")
	if !isPattern {
		return "", name == k.name || slices.Contains(k.legacy, name)
	}
	_, after, _ = strings.Cut(after, ">")
	wildcard, ok = strings.CutPrefix(name, before)
	if ok {
		wildcard, ok = strings.CutSuffix(wildcard, after)
	}
	return wildcard, ok && wildcard != ""
}

// Rules is the part of the Snapshot that defaulting and validation depend on.
func (s *Snapshot) Rules() *rules.Config {
	return &rules.Config{Defaults: s.Defaults, Features: s.Features, Autoscaling: s.Autoscaler, ProgressDeadline: s.Deployment.ProgressDeadline,
		Shim: s.Deployment.ShimImage != ""}
}

// A KeyError says which key of which ConfigMap is wrong, and why.
type KeyError struct {
	ConfigMap, Key, Value, Reason string
}

func (e *KeyError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("ConfigMap %s: %s", e.ConfigMap, e.Reason)
	}
	return fmt.Sprintf("ConfigMap %s: key %q: %s", e.ConfigMap, e.Key, e.Reason)
}
