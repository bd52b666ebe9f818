//go:build race

package activators

const raceDetector = true
