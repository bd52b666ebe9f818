package store

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	// syncs is how often the server inside writes to the disk what is not waited for.
	syncs = 10 * time.Second
	// starting is how long it may take to accept this process as a client.
	starting = time.Minute
)

// inside starts a server that only this process can reach.
func inside(o Options) (*server.Server, *nats.Conn, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make the directory of JetStream: %w", err)
	}
	// The streams have the limits. One of the server would refuse to make a store smaller, because
	// it counts what the other streams had before.
	one, err := server.NewServer(&server.Options{ServerName: "courier", DontListen: true, JetStream: true, StoreDir: o.Dir, SyncInterval: syncs,
		JetStreamMaxStore: math.MaxInt64, JetStreamMaxMemory: 16 << 20, NoSigs: true, NoLog: true, MaxPayload: 1 << 20})
	if err != nil {
		return nil, nil, fmt.Errorf("make the server of JetStream: %w", err)
	}
	one.SetLoggerV2(serverLog{o.Log}, false, false, false)
	one.Start()
	if !one.ReadyForConnections(starting) {
		one.Shutdown()
		return nil, nil, fmt.Errorf("the server of JetStream in %s did not start", o.Dir)
	}
	conn, err := nats.Connect("", nats.InProcessServer(one), nats.Name("courier"), nats.MaxReconnects(-1), nats.Timeout(starting))
	if err != nil {
		one.Shutdown()
		return nil, nil, fmt.Errorf("connect to the server of JetStream inside: %w", err)
	}
	return one, conn, nil
}

func outside(o Options) (*nats.Conn, error) {
	options := []nats.Option{nats.Name("ebb courier"), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(false), nats.Timeout(o.Timeout)}
	if o.Credentials != "" {
		options = append(options, nats.UserCredentials(o.Credentials))
	}
	conn, err := nats.Connect(o.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err) // not with the URL: it may hold a password
	}
	return conn, nil
}

// serverLog shows what the server inside says that matters.
type serverLog struct{ log *slog.Logger }

func (l serverLog) say(level slog.Level, format string, args []any) {
	if l.log != nil {
		l.log.Log(context.Background(), level, "JetStream: "+fmt.Sprintf(format, args...))
	}
}
func (l serverLog) Noticef(format string, v ...any) { l.say(slog.LevelDebug, format, v) }
func (l serverLog) Warnf(format string, v ...any)   { l.say(slog.LevelWarn, format, v) }
func (l serverLog) Fatalf(format string, v ...any)  { l.say(slog.LevelError, format, v) }
func (l serverLog) Errorf(format string, v ...any)  { l.say(slog.LevelError, format, v) }
func (l serverLog) Debugf(string, ...any)           {}
func (l serverLog) Tracef(string, ...any)           {}
