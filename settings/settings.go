// Package settings turns the config-* ConfigMaps of the system namespace into one immutable
// Snapshot.
//
// Owns: the meaning, default and bounds of every key (keys.go is the list). Reads: ConfigMap data,
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
}

// sections maps each ConfigMap to the function that reads it into a Snapshot. The functions start
// from the default values, so an absent key means its default.
func sections() map[string]func(*reader, *Snapshot) {
	return map[string]func(*reader, *Snapshot){
		AutoscalerName:     func(r *reader, s *Snapshot) { s.Autoscaler = readAutoscaler(r) },
		DefaultsName:       func(r *reader, s *Snapshot) { s.Defaults = readDefaults(r) },
		DeploymentName:     func(r *reader, s *Snapshot) { s.Deployment = readDeployment(r) },
		DomainName:         func(r *reader, s *Snapshot) { s.Domain = readDomain(r) },
		FeaturesName:       func(r *reader, s *Snapshot) { s.Features = readFeatures(r) },
		GCName:             func(r *reader, s *Snapshot) { s.GC = readGC(r) },
		NetworkName:        func(r *reader, s *Snapshot) { s.Network = readNetwork(r) },
		ObservabilityName:  func(r *reader, s *Snapshot) { s.Observability = readObservability(r) },
		TracingName:        func(*reader, *Snapshot) {}, // deprecated: may exist, says nothing
		LoggingName:        func(r *reader, s *Snapshot) { s.Logging = readLogging(r) },
		LeaderElectionName: func(r *reader, s *Snapshot) { s.LeaderElection = readLeaderElection(r) },
		CertManagerName:    func(r *reader, s *Snapshot) { s.CertManager = readCertManager(r) },
		GatewayName:        func(r *reader, s *Snapshot) { s.Gateway = readGateway(r) },
	}
}

// Names lists every ConfigMap this package reads, sorted.
func Names() []string { return slices.Sorted(maps.Keys(sections())) }

// Known reports whether name is a ConfigMap this package reads.
func Known(name string) bool { return slices.Contains(Names(), name) }

// Default is the Snapshot of an installation whose ConfigMaps say nothing.
func Default() *Snapshot {
	s := &Snapshot{}
	for _, read := range sections() {
		read(&reader{lenient: true}, s)
	}
	return s
}

// Parse reads a whole set of ConfigMaps, keyed by name. A missing map means its defaults; an
// unknown map is ignored. All faults of all maps are reported at once, each with map, key and
// reason; then no Snapshot is returned.
func Parse(configMaps map[string]map[string]string) (*Snapshot, error) {
	s := &Snapshot{}
	var faults []error
	table := sections()
	for _, name := range Names() {
		data, present := configMaps[name]
		r := &reader{name: name, data: data, lenient: !present}
		table[name](r, s)
		faults = append(faults, r.faults...)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return s, nil
}

// ParseOne tells whether data would be accepted as the content of the ConfigMap name; the webhook
// asks it before the change is stored. A map this package does not know is accepted.
func ParseOne(name string, data map[string]string) error {
	read, ok := sections()[name]
	if !ok {
		return nil
	}
	r := &reader{name: name, data: data}
	read(r, &Snapshot{})
	return errors.Join(r.faults...)
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
