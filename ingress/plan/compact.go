package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Compact is what activators are told of a Route: the targets whose requests they choose revisions
// for. It stands in an annotation of the Route's status. Hosts inside the cluster, rules and
// headers follow from it.
//
// Who reads it takes the Route's namespace and name from the object and from nowhere else, so no
// Route speaks for another one. A reader refuses fields that it does not know: they may change what
// becomes of a request.
type Compact struct {
	UID  string `json:"uid"`  // of the Route: a copy of its status on another object says nothing
	Hash string `json:"hash"` // of the whole plan, as gateways say it
	// At tells the plan from the same one at another time, in milliseconds since 1970: an activator
	// that is behind has not seen what was between.
	At int64 `json:"at,omitempty"`
	// TagHeader and Judged are Input's.
	TagHeader bool `json:"byTag,omitempty"`
	Judged    bool `json:"judged,omitempty"`
	// Async is Input's, with the UID above.
	Async   *CompactAsync   `json:"async,omitempty"`
	Targets []CompactTarget `json:"targets"`
}

// CompactAsync is Async without its UID.
type CompactAsync struct {
	Namespace string `json:"ns"`
	Preferred bool   `json:"preferred,omitempty"`
	Always    bool   `json:"always,omitempty"`
}

// CompactTarget is both targets, external and local, of a tag.
type CompactTarget struct {
	Tag  string `json:"tag,omitempty"`
	Name string `json:"name,omitempty"` // "" is the Route's
	Host string `json:"host,omitempty"` // the public one, if there is one
	// Rank orders Routes that have the same public host. The least one gets it.
	Rank int `json:"rank,omitempty"`
	// Redirects says that plain HTTP to the public host is redirected to https.
	Redirects bool `json:"redirects,omitempty"`
	// Apart says that gateways alone choose for the hosts of the target. It is here for the header
	// that chooses it on the Route's own hosts.
	Apart  bool           `json:"apart,omitempty"`
	Shares []CompactShare `json:"to"`
}

// CompactShare is a Share.
type CompactShare struct {
	Revision string `json:"rev"`
	Percent  int64  `json:"pct,omitempty"` // 0 is 100
	H2C      bool   `json:"h2c,omitempty"`
	TLS      bool   `json:"tls,omitempty"`
}

// What a compact plan may be at most. A Route with a longer one does without: gateways choose.
const (
	MaxCompact        = 64 << 10 // bytes
	maxCompactTargets = 512
	maxRank           = 9
)

// ErrTooLong says that activators cannot be told a plan, because it has too many targets.
var ErrTooLong = errors.New("the plan is too long for activators")

// Compact returns what activators are told of a plan that Make has made of in. ranks has the tags
// whose hosts they choose for, and the rank of each public host.
func (in *Input) Compact(p *Plan, uid string, ranks map[string]int) (*Compact, error) {
	c := &Compact{UID: uid, Hash: p.Hash(), TagHeader: in.TagHeader, Judged: in.Judged, Targets: []CompactTarget{}}
	if a := in.Async; a != nil {
		c.Async = &CompactAsync{Namespace: a.Namespace, Preferred: a.Preferred, Always: a.Always}
	}
	for _, tag := range slices.Sorted(maps.Keys(in.Targets)) {
		backends, err := in.backends(tag)
		if err != nil {
			return nil, err
		}
		rank, known := ranks[tag]
		if !known && (tag == "" || !in.TagHeader) {
			continue // no rule of another target has it
		}
		t := CompactTarget{Tag: tag, Apart: !known, Shares: []CompactShare{}}
		for _, b := range backends {
			t.Shares = append(t.Shares, CompactShare{Revision: b.Service, Percent: b.Percent % 100, H2C: b.Port == portH2C, TLS: b.Port == portTLS})
		}
		for i := range p.Targets {
			of := &p.Targets[i]
			if of.Tag != tag || t.Apart {
				continue
			}
			if of.Name != in.Name {
				t.Name = of.Name
			}
			if of.Visibility == External {
				t.Host, t.Rank, t.Redirects = of.Hosts[0], rank, of.Plain == HTTPRedirected
			}
		}
		c.Targets = append(c.Targets, t)
	}
	return c, c.check()
}

// Answer is what an activator that follows the plan says to a probe.
func (c *Compact) Answer() string { return fmt.Sprintf("%s.%d", c.Hash, c.At) }

// String returns the text of the annotation.
func (c *Compact) String() string {
	raw, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("a compact plan is plain data: %v", err))
	}
	return string(raw)
}

// ParseCompact reads the text of the annotation.
func ParseCompact(text string) (*Compact, error) {
	if len(text) > MaxCompact {
		return nil, ErrTooLong
	}
	c := &Compact{}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return nil, fmt.Errorf("compact plan: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("compact plan: something stands behind it")
	}
	return c, c.check()
}

var (
	aUID  = regexp.MustCompile(`^[-._a-zA-Z0-9]{1,64}$`)
	aHash = regexp.MustCompile(`^[0-9a-f]{16}$`)
)

func isLabel(text string) bool {
	return len(text) <= 63 && hostName.MatchString(text) && !strings.Contains(text, ".")
}

func isHost(text string) bool { return len(text) <= 253 && hostName.MatchString(text) }

// check refuses what no Route has: its words go into headers and hosts.
func (c *Compact) check() error {
	switch {
	case !aUID.MatchString(c.UID):
		return fmt.Errorf("compact plan: %q is no UID", c.UID)
	case !aHash.MatchString(c.Hash):
		return fmt.Errorf("compact plan: %q is no hash", c.Hash)
	case c.Async != nil && !isLabel(c.Async.Namespace):
		return fmt.Errorf("compact plan: %q is no namespace", c.Async.Namespace)
	case len(c.Targets) > maxCompactTargets:
		return ErrTooLong
	}
	seen := map[string]bool{}
	for i := range c.Targets {
		t := &c.Targets[i]
		if err := t.check(); err != nil {
			return fmt.Errorf("compact plan: tag %q: %w", t.Tag, err)
		}
		if seen[t.Tag] {
			return fmt.Errorf("compact plan: tag %q stands there twice", t.Tag)
		}
		seen[t.Tag] = true
	}
	if len(c.String()) > MaxCompact {
		return ErrTooLong
	}
	return nil
}

func (t *CompactTarget) check() error {
	switch {
	case t.Tag != "" && !isLabel(t.Tag):
		return errors.New("it is no label")
	case t.Name != "" && !isLabel(t.Name):
		return fmt.Errorf("%q is no name", t.Name)
	case t.Host != "" && !isHost(t.Host):
		return fmt.Errorf("%q is no host", t.Host)
	case t.Rank < 0 || t.Rank > maxRank:
		return fmt.Errorf("%d is no rank", t.Rank)
	case len(t.Shares) > maxBackends:
		return fmt.Errorf("%d revisions, and a rule has at most %d", len(t.Shares), maxBackends)
	}
	for i, s := range t.Shares {
		if !isHost(s.Revision) || s.Percent < 0 || s.Percent > 100 {
			return fmt.Errorf("%d%% is no share of revision %q", s.Percent, s.Revision)
		}
		if slices.ContainsFunc(t.Shares[:i], func(o CompactShare) bool { return o.Revision == s.Revision }) {
			return fmt.Errorf("revision %q stands there twice", s.Revision)
		}
	}
	return nil
}

// Plan returns the plan as activators follow it: without the targets that are Apart, and without
// the names of certificates. namespace and name are the Route's.
func (c *Compact) Plan(namespace, name, clusterDomain string) (*Plan, error) {
	in := Input{Namespace: namespace, Name: name, ClusterDomain: clusterDomain, TagHeader: c.TagHeader, Judged: c.Judged, Targets: map[string][]Share{}}
	if a := c.Async; a != nil {
		in.Async = &Async{Namespace: a.Namespace, UID: c.UID, Preferred: a.Preferred, Always: a.Always}
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		shares := make([]Share, 0, len(t.Shares))
		for _, s := range t.Shares {
			percent := s.Percent
			if percent == 0 {
				percent = 100
			}
			shares = append(shares, Share{Revision: s.Revision, Percent: percent, H2C: s.H2C, TLS: s.TLS})
		}
		in.Targets[t.Tag] = shares
	}
	tags := slices.Sorted(maps.Keys(in.Targets))
	p := &Plan{Namespace: namespace, Name: name}
	for i := range c.Targets {
		t := &c.Targets[i]
		if t.Apart {
			continue
		}
		rules, err := in.rules(t.Tag, tags)
		if err != nil {
			return nil, err
		}
		of := t.Name
		if of == "" {
			of = name
		}
		if t.Host != "" {
			public := in.external(t.Tag, of, t.Host, rules)
			if t.Redirects {
				public.Plain = HTTPRedirected
			}
			p.Targets = append(p.Targets, public)
		}
		p.Targets = append(p.Targets, in.local(t.Tag, of, rules))
	}
	return p, nil
}
