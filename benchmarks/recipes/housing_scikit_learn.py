#!/usr/bin/env python3
"""Scikit-learn's gradient boosting on the California housing table, beside configs/california_housing.yaml.

    benchmarks/recipes/housing_scikit_learn.py housing.csv

A tenth of the rows is for test and a tenth for validation, as in the config; three random divisions, and the default options
but for the number of trees, which the validation part decides. Needs pandas and scikit-learn.
"""

import sys
import time

import numpy as np
import pandas
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split


def main():
    table = pandas.read_csv(sys.argv[1])
    y = table.pop("median_house_value").to_numpy()
    table["ocean_proximity"] = table["ocean_proximity"].astype("category")
    for seed in (1, 2, 3):
        train_x, test_x, train_y, test_y = train_test_split(table, y, test_size=0.1, random_state=seed)
        begin = time.process_time()
        model = HistGradientBoostingRegressor(
            max_iter=2000, early_stopping=True, validation_fraction=0.11, categorical_features="from_dtype", random_state=seed
        )
        model.fit(train_x, train_y)
        error = np.sqrt(np.mean((model.predict(test_x) - test_y) ** 2))
        print(f"seed {seed}: test RMSE {error:.0f}, {model.n_iter_} trees, {time.process_time() - begin:.1f} s of CPU time")


main()
