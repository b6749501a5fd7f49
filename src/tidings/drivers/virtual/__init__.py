"""A network in virtual time: `schedule`, `link`, `streams` (TCP's promises), `node`, `network`."""
