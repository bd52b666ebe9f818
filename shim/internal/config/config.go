// Package config owns what a user can set of the shim: its variables and arguments, their defaults,
// bounds and descriptions.
//
// Owns: the table of variables. Reads: the environment and arguments it is given. Writes: the help.
// Never: starts anything.
package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"
)

// Mode is how the program is run.
type Mode string

// Modes.
const (
	HTTP        Mode = "http"        // the program is an HTTP server
	Streaming   Mode = "streaming"   // a process for each request, whose output is passed on as it comes
	Serializing Mode = "serializing" // a process for each request, whose output is kept until it ends
)

// Config is all that a user can set.
type Config struct {
	Mode            Mode
	Command         []string
	Port            int
	ProgramPort     int // 0: a free one
	Workers         int // 0: no limit, in mode HTTP only
	Queue           int
	Timeout         time.Duration // 0: none
	Grace           time.Duration
	MaxRequest      int64 // bytes; 0: no limit
	MaxResponse     int64 // bytes; 0: no limit
	ResponseHeaders bool
	ContentType     string
	LogRate         int // lines a second
	LogLevel        slog.Level
	Restarts        int
}

// variable describes one variable, once: parsing, defaults, the help and the table in docs/shim.md
// come from it.
type variable struct {
	name, Default string
	effect        string
	set           func(text string) error
}

// PerCPU is how many processes run at a time for each CPU if nobody says how many.
const PerCPU = 4

// WorkersVariable is where Ebb's controller tells containerConcurrency.
const WorkersVariable = "SHIM_WORKERS"

func variables(c *Config) []variable {
	return []variable{
		{"SHIM_MODE", "", "How the program is run: http, streaming or serializing. Required.", func(text string) error {
			switch c.Mode = Mode(text); c.Mode {
			case HTTP, Streaming, Serializing:
				return nil
			}
			return errors.New("must be http, streaming or serializing")
		}},
		{"SHIM_COMMAND", "", `The program with its arguments, if none stands after "--": words, or a JSON array of strings. No shell reads it.`, c.setCommand},
		{"PORT", "8080", "Port that takes the requests. In mode http the program gets a PORT of its own.", number(&c.Port, 1, math.MaxUint16)},
		{"SHIM_PROGRAM_PORT", "0", "Mode http: the port that the program listens on, if it does not follow PORT. 0 is a free port.", number(&c.ProgramPort, 0, math.MaxUint16)},
		{WorkersVariable, "0", fmt.Sprintf("Requests that are worked on at a time. Ebb sets it to containerConcurrency. 0 is %d for each CPU, and any number in mode http.", PerCPU), number(&c.Workers, 0, 10_000)},
		{"SHIM_QUEUE", "100", "Requests that wait for a worker. The next is answered 503 with Retry-After.", number(&c.Queue, 0, 100_000)},
		{"SHIM_TIMEOUT", "300s", "Time that a request may wait, and time that it may take. Then it is answered 503 or 504, or cut if the response has begun. Ebb sets it to timeoutSeconds. 0s is no limit, the default in mode http.", duration(&c.Timeout)},
		{"SHIM_GRACE", "5s", "Time from SIGTERM to SIGKILL for a process whose client has left or whose time is over, and for the program when the shim ends.", duration(&c.Grace)},
		{"SHIM_MAX_REQUEST", "100Mi", "Largest body of a request, in bytes, Ki, Mi or Gi. A larger one is answered 413. 0 is no limit, the default in mode http.", size(&c.MaxRequest)},
		{"SHIM_MAX_RESPONSE", "1Gi", "Largest body of a response. A larger one is cut, or answered 502 in mode serializing, which keeps it in memory and has the default 10Mi. 0 is no limit, the default in mode http.", size(&c.MaxResponse)},
		{"SHIM_RESPONSE_HEADERS", "false", "Whether the program writes a header before its answer, as a CGI script does: lines of Name: value, among them Status, and an empty line.", func(text string) (err error) {
			if c.ResponseHeaders, err = strconv.ParseBool(text); err != nil {
				return errors.New("must be true or false")
			}
			return nil
		}},
		{"SHIM_CONTENT_TYPE", "application/octet-stream", "Content-Type of an answer whose program tells none.", func(text string) error {
			if c.ContentType = text; strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
				return errors.New("has characters that no header may have")
			}
			return nil
		}},
		{"SHIM_LOG_RATE", "1000", "Lines a second of the programs' standard error that are logged, all processes together. The others are counted. In mode http the program writes to the container's output itself.", number(&c.LogRate, 0, 1_000_000)},
		{"SHIM_LOG_LEVEL", "info", "debug, info, warn or error. With debug there is a line for each request.", func(text string) error {
			if c.LogLevel.UnmarshalText([]byte(text)) != nil {
				return errors.New("must be debug, info, warn or error")
			}
			return nil
		}},
		{"SHIM_RESTARTS", "5", "Mode http: how often in a row the program is started again if it ends before it accepts connections. Then, or if it never did, the shim ends with its status, so that Kubernetes tells why.", number(&c.Restarts, 0, 1000)},
	}
}

// Parse reads the variables and the command, which are the arguments after "--". cpus is how many
// CPUs the container may use. The error names everything that is wrong.
func Parse(getenv func(string) string, command []string, cpus int) (*Config, error) {
	c := &Config{}
	var errs []error
	for _, v := range variables(c) {
		text, given := getenv(v.name), true
		if text == "" {
			text, given = c.defaultOf(v), false
		}
		if text == "" && v.name != "SHIM_MODE" {
			continue
		}
		if err := v.set(text); err != nil {
			if given {
				err = fmt.Errorf("%q %w", text, err)
			}
			errs = append(errs, fmt.Errorf("variable %s: %w", v.name, err))
		}
	}
	if len(command) > 0 {
		c.Command = command
	}
	if len(c.Command) == 0 {
		errs = append(errs, errors.New(`no program: put it after "--", or into the variable SHIM_COMMAND`))
	}
	if c.ProgramPort == c.Port && c.Port != 0 {
		errs = append(errs, fmt.Errorf("variable SHIM_PROGRAM_PORT: %d is PORT, where the shim takes the requests", c.Port))
	}
	if c.Mode != HTTP {
		c.Workers = cmp.Or(c.Workers, PerCPU*cpus)
	}
	return c, errors.Join(errs...)
}

// defaultOf is the default of a variable in the mode, which is read first.
func (c *Config) defaultOf(v variable) string {
	switch {
	case c.Mode == HTTP && (v.name == "SHIM_TIMEOUT" || strings.HasPrefix(v.name, "SHIM_MAX_")):
		return "0"
	case c.Mode == Serializing && v.name == "SHIM_MAX_RESPONSE":
		return "10Mi"
	}
	return v.Default
}

func (c *Config) setCommand(text string) error {
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		if json.Unmarshal([]byte(text), &c.Command) != nil {
			return errors.New("must be a JSON array of strings, or words")
		}
	} else {
		c.Command = strings.Fields(text)
	}
	if len(c.Command) > 0 && c.Command[0] == "" {
		return errors.New("names no program")
	}
	return nil
}

func number(into *int, least, most int) func(string) error {
	return func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			return fmt.Errorf("must be a whole number from %d to %d", least, most)
		}
		*into = n
		return nil
	}
}

func duration(into *time.Duration) func(string) error {
	return func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 || d > 24*time.Hour {
			return errors.New(`must be a duration such as "30s" or "5m", at most 24h`)
		}
		*into = d
		return nil
	}
}

func size(into *int64) func(string) error {
	return func(text string) error {
		digits, shift := text, 0
		for i, unit := range []string{"Ki", "Mi", "Gi"} {
			if rest, ok := strings.CutSuffix(text, unit); ok {
				digits, shift = rest, 10*(i+1)
			}
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64>>(shift+1) {
			return errors.New(`must be a number of bytes such as "1000", "64Ki", "10Mi" or "1Gi"`)
		}
		*into = n << shift
		return nil
	}
}
