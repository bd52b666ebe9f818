// Package calls reads the schedules by which a Service is called, such as
//
//   - name: report
//     cron: "0 8 * * 1-5"
//     timeZone: Europe/Berlin
//     path: /report
//
// Owns: the format. Reads: nothing but its arguments. Writes: nothing. Never: looks at a clock, or
// at the time zones of the machine: they are built in, so that admission and the courier read a
// schedule alike.
package calls

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // images have no time zones

	"github.com/robfig/cron/v3"
	"golang.org/x/net/http/httpguts"
	"sigs.k8s.io/yaml"
)

// Bounds of the schedules of one Service.
const (
	MaxSchedules = 20
	MaxText      = 64 << 10
	maxBody      = 8 << 10
	maxPath      = 2048
	maxHeaders   = 20
)

// What happens to times that passed while the courier did not run, and to a call that is due while
// the one before is not completed.
const (
	MissedSkip = "Skip" // none is made up for
	MissedOnce = "Once" // one call is made for all of them

	ConcurrencyAllow  = "Allow"  // it is made
	ConcurrencyForbid = "Forbid" // it is left out
)

// Schedule is one line of the list.
type Schedule struct {
	Name        string            `json:"name"`
	Cron        string            `json:"cron"`
	TimeZone    string            `json:"timeZone,omitempty"` // UTC
	Method      string            `json:"method,omitempty"`   // POST
	Path        string            `json:"path,omitempty"`     // /
	Headers     map[string]string `json:"headers,omitempty"`
	Body        string            `json:"body,omitempty"`
	Missed      string            `json:"missed,omitempty"`      // MissedSkip
	Concurrency string            `json:"concurrency,omitempty"` // ConcurrencyAllow
	Suspend     bool              `json:"suspend,omitempty"`

	at *cron.SpecSchedule
}

// Next returns the first time after another at which the schedule is due.
func (s *Schedule) Next(after time.Time) time.Time { return s.at.Next(after) }

// fields are those of crontab(5).
var fields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Parse reads a list of schedules in YAML, and fills in what is not given.
func Parse(text string) ([]Schedule, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("has more than %d bytes", MaxText)
	}
	var list []Schedule
	if err := yaml.UnmarshalStrict([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("is not a list of schedules in YAML: %w", err)
	}
	if len(list) > MaxSchedules {
		return nil, fmt.Errorf("has %d schedules, at most %d are allowed", len(list), MaxSchedules)
	}
	seen := map[string]bool{}
	for i := range list {
		s := &list[i]
		if !label.MatchString(s.Name) {
			return nil, fmt.Errorf("schedule %d: name %q is not a DNS label", i+1, s.Name)
		}
		if seen[s.Name] {
			return nil, fmt.Errorf("schedule %s is there twice", s.Name)
		}
		seen[s.Name] = true
		if err := s.complete(); err != nil {
			return nil, fmt.Errorf("schedule %s: %w", s.Name, err)
		}
	}
	return list, nil
}

func (s *Schedule) complete() error {
	zone, err := location(s.TimeZone)
	if err != nil {
		return err
	}
	if strings.Contains(s.Cron, "=") || strings.HasPrefix(strings.TrimSpace(s.Cron), "@") {
		return fmt.Errorf("cron %q must have five fields, such as \"0 8 * * 1-5\"", s.Cron)
	}
	at, err := fields.Parse(s.Cron)
	if err != nil {
		return fmt.Errorf("cron %q: %w", s.Cron, err)
	}
	s.at = at.(*cron.SpecSchedule)
	s.at.Location = zone
	if s.at.Next(time.Unix(0, 0)).IsZero() {
		return fmt.Errorf("cron %q is never due, because there is no such day", s.Cron)
	}
	if s.Method == "" {
		s.Method = http.MethodPost
	}
	if s.Path == "" {
		s.Path = "/"
	}
	for _, choice := range []struct {
		of    *string
		name  string
		legal []string
	}{
		{&s.Method, "method", []string{http.MethodPost, http.MethodGet, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodHead}},
		{&s.Missed, "missed", []string{MissedSkip, MissedOnce}},
		{&s.Concurrency, "concurrency", []string{ConcurrencyAllow, ConcurrencyForbid}},
	} {
		if *choice.of == "" {
			*choice.of = choice.legal[0]
		}
		if !slices.Contains(choice.legal, *choice.of) {
			return fmt.Errorf("%s %q is not one of %s", choice.name, *choice.of, strings.Join(choice.legal, ", "))
		}
	}
	return s.request()
}

// request judges what is sent.
func (s *Schedule) request() error {
	u, err := url.ParseRequestURI(s.Path)
	switch {
	case err != nil || u.IsAbs() || !strings.HasPrefix(s.Path, "/") || strings.ContainsAny(s.Path, "# \t\r\n") || len(s.Path) > maxPath:
		return fmt.Errorf("path %q is not a path", s.Path)
	case len(s.Body) > maxBody:
		return fmt.Errorf("the body has more than %d bytes", maxBody)
	case len(s.Headers) > maxHeaders:
		return fmt.Errorf("there are more than %d headers", maxHeaders)
	}
	for name, value := range s.Headers {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) || strings.EqualFold(name, "host") {
			return fmt.Errorf("%q is not a header that can be sent", name)
		}
	}
	return nil
}

// location finds an IANA time zone. The name "Local" is that of no zone.
func location(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	if name != "Local" {
		if zone, err := time.LoadLocation(name); err == nil {
			return zone, nil
		}
	}
	return nil, fmt.Errorf("%w, %q is none", errZone, name)
}

var errZone = errors.New("timeZone must be an IANA time zone such as Europe/Berlin")
