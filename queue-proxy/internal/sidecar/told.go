package sidecar

import (
	"strings"
	"time"

	"ebb.dev/ebb/queue-proxy/internal/told"
	"ebb.dev/ebb/wire"
)

// hear takes what the container tells of its load.
func (s *Sidecar) hear() {
	if len(s.cfg.Told) == 0 {
		return
	}
	s.board = told.New(s.cfg.Told)
	s.reporter.Told = func(now time.Time) wire.Told { return s.board.Told(now, s.gate.Inside()) }
	if !s.board.HasHeader() {
		return
	}
	s.server.StripResponse = append(s.server.StripResponse, wire.HeaderLoad)
	s.server.Stripped = func(name, value string) {
		if strings.EqualFold(name, wire.HeaderLoad) {
			s.board.Header(value, time.Now())
		}
	}
}
