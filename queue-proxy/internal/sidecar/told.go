package sidecar

import (
	"strings"
	"time"

	"ebb.dev/ebb/queue-proxy/internal/told"
	"ebb.dev/ebb/wire"
)

// hear takes what the container tells of its load, that it is busy, and that an answer failed.
func (s *Sidecar) hear() {
	if len(s.cfg.Told) > 0 {
		s.board = told.New(s.cfg.Told)
		s.reporter.Told = func(now time.Time) wire.Told { return s.board.Told(now, s.gate.Inside()) }
		if s.board.HasHeader() {
			s.server.StripResponse = append(s.server.StripResponse, wire.HeaderLoad)
		}
	}
	if s.cfg.BusyFor > 0 {
		s.work = &told.Busy{Max: s.cfg.BusyFor}
		if s.sleeper != nil {
			s.work.Changed = s.sleeper.Busy
		}
		s.server.StripResponse = append(s.server.StripResponse, wire.HeaderBusy)
	}
	s.server.Stripped = func(name, value string, started time.Time) (mark bool) {
		switch {
		case strings.EqualFold(name, wire.HeaderFailed):
			return strings.EqualFold(value, "true")
		case strings.EqualFold(name, wire.HeaderLoad):
			s.board.Header(value, time.Now())
		case strings.EqualFold(name, wire.HeaderBusy):
			if !s.work.Header(value, started, time.Now()) && s.misspoke.CompareAndSwap(false, true) {
				s.log.Warn("the container said for how long it is busy in a way that is not understood; such responses are ignored, and not logged again",
					"header", wire.HeaderBusy, "value", strings.Clone(value[:min(len(value), 40)]), "want", "a duration such as 90s, or 0")
			}
		}
		return false
	}
}
